"""Programmatic dependent launch: a kernel begins while the one before it ends."""

from paceline_kernels.dependent.switch import dependent

__all__ = ["dependent"]
