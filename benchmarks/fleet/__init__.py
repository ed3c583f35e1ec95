"""Measures what many pods cost the tuner: its rounds and client are real, the sidecars are fake."""
