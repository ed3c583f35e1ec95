"""The continuous-batching engine: it schedules, runs, samples and settles; it knows no HTTP."""

__version__ = "0.2.0"
