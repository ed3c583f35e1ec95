"""The operator: it observes, decides, renders, applies and reports; it knows no torch."""

__version__ = "0.2.0"
