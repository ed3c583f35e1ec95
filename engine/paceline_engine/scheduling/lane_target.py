"""What a step may take, given whose decodes are in it. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from paceline_engine.core.request import Request
from paceline_engine.pacing.slack import LONGEST_STEP
from paceline_wire.limits import Limits


def for_decodes(limits: Limits, decodes: Iterable[Request]) -> Limits:
    """The limits that pace a step of these decodes."""
    if limits.batch_step_target_ms is None:
        return limits
    lanes = {request.lane for request in decodes}
    return for_lanes(limits, has_interactive="interactive" in lanes, has_batch="batch" in lanes)


def for_lanes(limits: Limits, *, has_interactive: bool, has_batch: bool) -> Limits:
    """The limits that pace a step: the least of what the lanes that decode in it want.

    A step that is paced by the slack of its requests may take `LONGEST_STEP` times their pace;
    where the batch lane wants less than that, both lanes get a plain target.
    """
    batch_ms = limits.batch_step_target_ms
    if batch_ms is None or not has_batch:
        return limits
    if not has_interactive:
        return replace(limits, step_target_ms=batch_ms, pace_tpot_ms=None)
    pace_ms, target_ms = limits.pace_tpot_ms, limits.step_target_ms
    least_ms = batch_ms if target_ms is None else min(target_ms, batch_ms)
    if pace_ms is not None and batch_ms < LONGEST_STEP * pace_ms:
        return replace(limits, step_target_ms=min(least_ms, pace_ms), pace_tpot_ms=None)
    return replace(limits, step_target_ms=least_ms)
