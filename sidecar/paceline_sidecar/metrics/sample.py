"""Samples of steps and of requests that keep every sum, and the slowest requests.

The tuner reads thousands of pods and needs no record of each request. The slowest stay as they
are: p99s and misses are theirs. Of the others, each that stays stands for its neighbours in the
order of output length. `paceline_tuner.sample` chooses in the same way from all records.
"""

from collections.abc import Callable, Hashable, Sequence
from heapq import nlargest
from itertools import pairwise
from typing import Final, TypeVar

from paceline_sidecar.hot_config import HotConfig
from paceline_sidecar.metrics.finished_request import FinishedRequest
from paceline_sidecar.metrics.ring import Numbered
from paceline_wire import StepRecord

Item = TypeVar("Item")
_SLICE_S: Final = 5.0
_LEAST: Final = 4  # of each kind


def sampled_steps(
    steps: Sequence[Numbered[StepRecord]], most: int
) -> list[Sequence[Numbered[StepRecord]]]:
    """Cut into at most so many groups for each 5 s; the middle one stands for its group."""
    if not steps:
        return []
    room = _room(steps[0].record.at, steps[-1].record.at, most)
    return _groups(steps, min(room, len(steps)))


def all_alike(record: FinishedRequest) -> Hashable:
    """Return one kind for all requests; only lane and outcome still separate them."""
    del record
    return None


def by_class(config: HotConfig) -> Callable[[FinishedRequest], Hashable]:
    """Tell requests apart by class of prompt, and by whether they missed its target."""

    def kind_of(record: FinishedRequest) -> Hashable:
        mine = config.sla_of(record.lane).class_of(record.prompt_tokens)
        if mine is None:
            return None
        return mine, record.ttft_ms is not None and record.ttft_ms > mine.ttft_p99_ms

    return kind_of


def sampled_requests(
    requests: Sequence[Numbered[FinishedRequest]],
    most: int,
    kind_of: Callable[[FinishedRequest], Hashable] = all_alike,
) -> list[Sequence[Numbered[FinishedRequest]]]:
    """Cut into about so many groups for each 5 s; the slowest are alone in theirs.

    A group has requests of one kind. Groups come in the order in which their middle ones ended.
    """
    if not requests:
        return []
    room = _room(requests[0].record.finished_at, requests[-1].record.finished_at, most)
    if len(requests) <= room:
        return _groups(requests, len(requests))
    kinds: dict[tuple[str, str, Hashable], list[Numbered[FinishedRequest]]] = {}
    for numbered in requests:
        kind = numbered.record.lane, numbered.record.outcome, kind_of(numbered.record)
        kinds.setdefault(kind, []).append(numbered)
    groups: list[Sequence[Numbered[FinishedRequest]]] = []
    for alike in kinds.values():
        groups += _of_one_kind(alike, max(_LEAST, room * len(alike) // len(requests)))
    return sorted(groups, key=lambda group: middle(group).seq)


def middle(group: Sequence[Item]) -> Item:
    """Give the one that stands for the group."""
    return group[len(group) // 2]


def _of_one_kind(
    requests: Sequence[Numbered[FinishedRequest]], room: int
) -> list[Sequence[Numbered[FinishedRequest]]]:
    if len(requests) <= room:
        return _groups(requests, len(requests))
    measures = (
        (room // 4, _ttft_ms),
        (room // 4, _tpot_ms),
        (room // 8, _itl_ms),
        (room // 8, _lasted_ms),
    )
    slowest = {
        numbered.seq: numbered
        for most, measure in measures
        for numbered in nlargest(most, requests, key=measure)
    }
    others = [numbered for numbered in requests if numbered.seq not in slowest]
    others.sort(key=_output_tokens)
    return [*([each] for each in slowest.values()), *_groups(others, room - len(slowest))]


def _room(first: float, last: float, most: int) -> int:
    return most * max(1, round((last - first) / _SLICE_S))


def _groups(items: Sequence[Item], num: int) -> list[Sequence[Item]]:
    """Cut into so many groups of neighbours, of equal size but for one item."""
    edges = [place * len(items) // num for place in range(num + 1)] if num else []
    return [items[low:high] for low, high in pairwise(edges) if low < high]


def _ttft_ms(numbered: Numbered[FinishedRequest]) -> float:
    return numbered.record.ttft_ms or 0.0


def _tpot_ms(numbered: Numbered[FinishedRequest]) -> float:
    return numbered.record.tpot_ms or 0.0


def _lasted_ms(numbered: Numbered[FinishedRequest]) -> float:
    return numbered.record.e2e_ms


def _itl_ms(numbered: Numbered[FinishedRequest]) -> float:
    return numbered.record.itl_max_ms or 0.0


def _output_tokens(numbered: Numbered[FinishedRequest]) -> int:
    return numbered.record.output_tokens
