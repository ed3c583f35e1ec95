"""Faults at random moments on a whole Kubernetes, while clients stream answers."""
