"""What one operator makes of a thousand services, against a real API server."""
