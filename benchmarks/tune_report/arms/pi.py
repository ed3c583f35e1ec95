"""PI on p99: the token budget by a proportional and an integral part of how far p99 is off.

    e = ln(target / p99)        ln(budget) += KP * (e - e before) + KI * e

In logarithms the loop's gain is about one at any load: twice the budget is about twice the step.
A p99 of twenty seconds tells of a change after about half of them, two periods. For a process that
only delays, SIMC (Skogestad 2003, J. Process Control 13) gives an integral of 1 / (2 * delay), a
quarter a period, and no proportional part; a half of one answers a jump sooner. The budget's bound
is the integral's too, so nothing winds up.
"""

import math

from paceline_tuner.service_spec import SLA
from tune_report.arms.reading import Reading

_KP, _KI = 0.5, 0.25
_LEAST, _MOST = -1.0, 1.0
"""Bounds of the error: one p99 of a stall must not close the budget."""


class PiOnP99:
    """The token budget alone, which sets how long a step takes; the batch size stays."""

    def __init__(self) -> None:
        """Start without a measurement."""
        self._log_budget: float | None = None
        self._before = 0.0

    def limits(self, reading: Reading, sla: SLA) -> tuple[int, int]:
        """Move by the error of the worse of the token targets."""
        error = _error(reading, sla)
        if error is None:
            return reading.batch, reading.budget
        if self._log_budget is None:
            self._log_budget, self._before = math.log(reading.budget), error
        wanted = self._log_budget + _KP * (error - self._before) + _KI * error
        low, high = math.log(reading.batch), math.log(reading.max_budget)
        self._log_budget, self._before = min(max(wanted, low), high), error
        return reading.batch, round(math.exp(self._log_budget))


def _error(reading: Reading, sla: SLA) -> float | None:
    """Return ln(target / p99) of the worst-kept target; None without samples."""
    pairs = ((reading.itl_p99_ms, sla.itl_p99_ms), (reading.tpot_p99_ms, sla.tpot_p99_ms))
    errors = [math.log(wanted / seen) for seen, wanted in pairs if seen and wanted]
    return min(max(min(errors), _LEAST), _MOST) if errors else None
