"""Pure ASGI wrappers around the routes."""
