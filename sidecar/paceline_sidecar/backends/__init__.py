"""What the sidecar speaks with: an engine behind the Backend protocol."""
