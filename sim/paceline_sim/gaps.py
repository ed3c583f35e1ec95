"""Reads the simulated engine's counts of inter-token gaps: rows of 5 seconds, logarithmic bins."""

import math

import numpy as np

from paceline_sim.state import FIRST_BIN, GAMMA, NUM_BINS, Whole

_LOG_GAMMA = math.log(GAMMA)


def column_of(gap_ms: float) -> int:
    """Find the column that counts a gap: upper edge GAMMA^(column + FIRST_BIN) ms."""
    column = math.ceil(math.log(gap_ms) / _LOG_GAMMA) - FIRST_BIN
    return min(max(column, 0), NUM_BINS - 1)


def gaps_over(counts: Whole, target_ms: float) -> Whole:
    """Per row of `counts` [rows, NUM_BINS]: gaps above the target, to within a bin (2 %) [rows].

    The target's own bin counts as kept, so a gap up to 2 % above it may too.
    """
    return np.asarray(counts[:, column_of(target_ms) + 1 :].sum(axis=1), np.int64)


def gap_quantile_ms(counts: Whole, quantile: float) -> float:
    """Return a quantile of one row of counts or several, to within 1 %; nan without gaps."""
    columns = counts.reshape(-1, NUM_BINS).sum(axis=0)
    total = int(columns.sum())
    if total == 0:
        return math.nan
    column = int(np.searchsorted(np.cumsum(columns), math.ceil(quantile * total)))
    return float(GAMMA ** (column + FIRST_BIN) * 2 / (1 + GAMMA))
