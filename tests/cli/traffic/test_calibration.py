"""How fast a machine serves is what its slow seconds allow."""

from dataclasses import replace
from itertools import accumulate, repeat

import pytest

from paceline_cli.traffic.calibration import speed_of
from paceline_cli.traffic.record import ClientRecord


def answered(*, prompt_ms: float, token_ms: float, prompt_tokens: int = 100) -> ClientRecord:
    """A lone request of 20 tokens, each `token_ms` after the one before."""
    first_s = (prompt_ms + token_ms) / 1e3
    arrivals = tuple(accumulate(repeat(token_ms / 1e3, 19), initial=first_s))
    return ClientRecord(
        planned_at=0.0,
        sent_at=0.0,
        token_ats=arrivals,
        finished_at=arrivals[-1],
        prompt_tokens=prompt_tokens,
        output_tokens=20,
        outcome="ok",
    )


def test_the_slowest_of_the_lone_requests_counts() -> None:
    """Each part by itself: a slow prompt and a slow answer need not be those of one request."""
    speed = speed_of(
        [
            answered(prompt_ms=200.0, token_ms=10.0),
            answered(prompt_ms=430.0, token_ms=9.0),
            answered(prompt_ms=210.0, token_ms=14.0),
        ],
        capacity_rps=2.5,
    )

    assert speed.capacity_rps == 2.5
    assert speed.decode_ms == pytest.approx(14.0)
    assert speed.prefill_ms == pytest.approx(4.3)


def test_one_late_token_is_no_slow_machine() -> None:
    """A request's speed is that of its median token."""
    steady = answered(prompt_ms=200.0, token_ms=10.0)
    *others, last = steady.token_ats
    hiccup = replace(steady, token_ats=(*others, last + 3.0), finished_at=last + 3.0)

    assert speed_of([steady, hiccup], capacity_rps=1.0).decode_ms == pytest.approx(10.0)
