"""Talk to a service."""
