"""Render the manifests of a service's children, purely."""
