"""Measure a service: sweeps of both limits, comparisons of schedulings."""
