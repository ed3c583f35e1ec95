"""Why a step is computed op by op though others are replayed."""

import pytest

from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.runner.graph_use import GraphUse, why_eager
from paceline_wire import Sampling, WhyEager


def a_request(*, adapter_slot: int | None = None) -> Request:
    sampling = Sampling(max_tokens=4)
    return Request("r", [1, 2, 3], 3, sampling, row=0, adapter_slot=adapter_slot)


PLAIN = ScheduledChunk(a_request(), 2, 1, samples=True, is_decode=True)
PROMPT = ScheduledChunk(a_request(), 0, 3, samples=True, is_decode=False)
DRAFTED = ScheduledChunk(a_request(), 2, 3, samples=True, is_decode=True, draft=(7, 8))
ADAPTED = ScheduledChunk(a_request(adapter_slot=0), 2, 1, samples=True, is_decode=True)
PADDING = ScheduledChunk(a_request(), 2, 1, samples=False, is_decode=True, is_padding=True)


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (Batch((PLAIN, PLAIN), 2), None),
        (Batch((PLAIN, PROMPT), 1), "prefill"),
        (Batch((PLAIN, DRAFTED), 1, num_drafted=1), "draft"),
        (Batch((PLAIN, ADAPTED), 2), None),
        (Batch((ADAPTED, PROMPT), 1), "prefill"),
        (Batch((PLAIN, PADDING), 2), "padding"),
    ],
    ids=["plain", "prefill", "draft", "adapter", "adapter beside a prompt", "padding"],
)
def test_only_plain_decodes_are_replayed(batch: Batch, why: WhyEager | None) -> None:
    """A graph of decodes has one token of each row, with an adapter or without."""
    assert why_eager(batch) == why


def test_what_ran_before_the_first_request_does_not_count() -> None:
    """Warm-up and profile are nobody's steps."""
    use = GraphUse(decodes=3, mixed=2)
    use.eager["prefill"] += 1

    use.restart()

    assert use == GraphUse()


def test_every_step_counts_once() -> None:
    """As what it was computed by; by reason where that was op by op."""
    use = GraphUse()

    use.count("decode graph", None)
    use.count("mixed graph", "prefill")
    use.count("mixed graph", "draft")
    use.count("eager", "prefill")

    assert (use.decodes, use.mixed, dict(use.eager)) == (1, 2, {"prefill": 1})
