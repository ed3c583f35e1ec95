"""The GPU kernels, each with its reference in plain torch beside it."""

__version__ = "0.1.0"
