"""Samples of steps and of requests that keep every sum, and the slowest requests. Pure.

A pod that serves five thousand requests a minute is judged by all of them, and need not be kept
request by request. The slowest stay as they are: p99s and misses are theirs. Of the others, each
that stays stands for its neighbours in the order of output length. So counts are exact wherever
fewer miss than stay, and the means of lengths are nearly so.
"""

from collections.abc import Callable, Hashable, Sequence
from heapq import nlargest
from itertools import pairwise
from operator import attrgetter
from typing import Final, TypeVar

from msgspec.structs import astuple, replace

from paceline_tuner.telemetry import RequestRecord, RequestRow, Step, StepRow

Record = TypeVar("Record")

SAMPLE: Final = 24
"""Records of each kind that stay of five seconds."""
_SLICE_S: Final = 5.0
_LEAST: Final = 4  # of each kind
_seq = attrgetter("seq")


def sampled_steps(steps: Sequence[Step], most: int | None) -> list[StepRow]:
    """Choose evenly at most so many steps of each 5 s, in the order in which they ran."""
    room = _room(steps[0].at, steps[-1].at, most) if steps and most else len(steps)
    if len(steps) <= room:
        return [_step_row(step) for step in steps]
    return [_standing_for(group) for group in _groups(steps, room)]


def all_alike(record: RequestRecord) -> Hashable:
    """Tell no requests apart beyond their lanes and outcomes."""
    del record
    return None


def sampled_requests(
    requests: Sequence[RequestRecord],
    most: int | None,
    kind_of: Callable[[RequestRecord], Hashable] = all_alike,
) -> list[RequestRow]:
    """Choose about so many requests of each 5 s, in the order in which they ended.

    None stands for one of another kind.
    """
    span = (requests[0].finished_at, requests[-1].finished_at) if requests else (0.0, 0.0)
    room = _room(*span, most) if most else len(requests)
    if len(requests) <= room:
        return [_request_row(record) for record in requests]
    kinds: dict[tuple[str, str, Hashable], list[RequestRecord]] = {}
    for record in requests:
        kind = record.lane, record.outcome, kind_of(record)
        kinds.setdefault(kind, []).append(record)
    chosen: list[RequestRow] = []
    for alike in kinds.values():
        chosen += _of_one_kind(alike, max(_LEAST, room * len(alike) // len(requests)))
    return sorted(chosen, key=_seq)


def _room(first: float, last: float, most: int) -> int:
    return most * max(1, round((last - first) / _SLICE_S))


def _of_one_kind(records: Sequence[RequestRecord], room: int) -> list[RequestRow]:
    """Keep the slowest by each measure, and groups of the others."""
    if len(records) <= room:
        return [_request_row(record) for record in records]
    slowest = {record.seq: record for record in nlargest(room // 4, records, key=_ttft_ms)}
    slowest |= {record.seq: record for record in nlargest(room // 4, records, key=_tpot_ms)}
    slowest |= {record.seq: record for record in nlargest(room // 8, records, key=_itl_max_ms)}
    slowest |= {record.seq: record for record in nlargest(room // 8, records, key=_lasted_s)}
    others = sorted([r for r in records if r.seq not in slowest], key=_output_tokens)
    chosen = [_request_row(record) for record in slowest.values()]
    for group in _groups(others, room - len(slowest)):
        weight = sum(record.weight for record in group)
        chosen.append(replace(_request_row(group[len(group) // 2]), weight=weight))
    return chosen


def _standing_for(steps: Sequence[Step]) -> StepRow:
    """Give the middle one of some steps, which stands for all of them."""
    return replace(
        _step_row(steps[len(steps) // 2]),
        weight=sum(step.weight for step in steps),
        decodes=sum(step.num_decodes for step in steps),
    )


def _groups(records: Sequence[Record], num: int) -> list[Sequence[Record]]:
    """Cut into so many groups of neighbours, of equal size but for one record."""
    edges = [place * len(records) // num for place in range(num + 1)]
    return [records[low:high] for low, high in pairwise(edges) if low < high]


def _step_row(step: Step) -> StepRow:
    return step if isinstance(step, StepRow) else StepRow(*astuple(step))


def _request_row(record: RequestRecord) -> RequestRow:
    return record if isinstance(record, RequestRow) else RequestRow(*astuple(record))


def _output_tokens(record: RequestRecord) -> int:
    return record.output_tokens


def _ttft_ms(record: RequestRecord) -> float:
    return record.ttft_ms or 0.0


def _tpot_ms(record: RequestRecord) -> float:
    return record.tpot_ms or 0.0


def _lasted_s(record: RequestRecord) -> float:
    return record.finished_at - record.arrived_at


def _itl_max_ms(record: RequestRecord) -> float:
    return record.itl_max_ms or 0.0
