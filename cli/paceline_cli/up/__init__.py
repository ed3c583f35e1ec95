"""Serve a manifest on this machine: children, health, the file's changes, the tuner."""
