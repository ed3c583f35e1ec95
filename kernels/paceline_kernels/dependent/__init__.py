"""Programmatic dependent launch: a kernel begins while the one before it ends."""

from paceline_kernels.dependent.switch import LEAST_CAPABILITY, dependent

__all__ = ["LEAST_CAPABILITY", "dependent"]
