"""Weights to a model that serves: memory, device, assembly."""
