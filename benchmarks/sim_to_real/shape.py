"""The time of one step on a `Hardware`, without noise."""

from dataclasses import astuple

import numpy as np

from paceline_sim.hardware import Hardware
from paceline_sim.steps import step_ms
from paceline_tuner.telemetry import Step


def step_ms_of(
    hardware: Hardware, *, decode: int, prefill: int, context: int, attention: int
) -> float:
    """Return the milliseconds of a step with these tokens; its prompts count as one sequence."""
    costs = np.array(astuple(hardware.costs), np.float64)
    sequences = decode + (1 if prefill else 0)
    return float(step_ms(hardware.dense_ms, costs, decode, prefill, context, attention, sequences))


def told_ms(
    hardware: Hardware, steps: list[Step]
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Milliseconds of steps that ran [steps]."""
    return np.array(
        [
            step_ms_of(
                hardware,
                decode=s.decode,
                prefill=s.prefill,
                context=s.context,
                attention=s.attention,
            )
            for s in steps
        ],
        np.float64,
    )
