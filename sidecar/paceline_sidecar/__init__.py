"""The serving edge: it admits, submits, streams and measures; it knows no Kubernetes, no CUDA."""

__version__ = "0.2.0"
