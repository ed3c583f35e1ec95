"""At start: measures what steps of many sizes take, lets the pacer begin with it, and says so."""

import logging
from collections.abc import Callable

from paceline_engine.core.flight import Runner
from paceline_engine.pacing.cost_points import CostPoint
from paceline_engine.pacing.cost_table import CostTable
from paceline_engine.pacing.pacer import Pacer
from paceline_engine.profiling.profile import StepTimer, profile
from paceline_wire import ProfiledStep, StepProfile
from paceline_wire.limits import Capacity

_log = logging.getLogger(__name__)


def begin_with_profile(
    pacer: Pacer,
    runner: Runner,
    capacity: Capacity,
    *,
    overlap: bool,
    budget_s: float,
    clock: Callable[[], float],
) -> StepProfile | None:
    """Measure for `budget_s` seconds; None where that is 0, or the pacer has no model."""

    def expected_ms(point: CostPoint) -> float:
        return pacer.predict_ms(
            decode=point.decode,
            prefill=point.prefill,
            context=point.context,
            attention=point.attention,
        )

    if budget_s <= 0 or expected_ms(CostPoint(1, 1, 0, 0)) <= 0:
        return None
    timer = StepTimer(runner, capacity, clock, overlap=overlap)
    table = profile(timer, capacity, expected_ms, budget_s=budget_s, clock=clock)
    is_used = pacer.learn_profile(table)
    _tell(table, is_used=is_used)
    return StepProfile(
        took_s=table.took_s,
        is_used=is_used,
        steps=[
            ProfiledStep(row.decode, row.context, row.prefill, row.attention, row.ms)
            for row in table.rows
        ],
    )


def _tell(table: CostTable, *, is_used: bool) -> None:
    measured = f"profiled {len(table)} sizes of steps in {table.took_s:.2f} s"
    if not is_used:
        too_short = "too few for the step model, PACELINE_ENGINE_PROFILE_S is too short"
        _log.warning("%s: %s", measured, too_short)
        return
    least, most = table.rows[0], max(table.rows, key=lambda row: row.ms)
    _log.info(
        "%s: %.2f ms with %d decodes and %d prompt tokens, %.2f ms with %d and %d",
        measured,
        *(least.ms, least.decode, least.prefill),
        *(most.ms, most.decode, most.prefill),
    )
