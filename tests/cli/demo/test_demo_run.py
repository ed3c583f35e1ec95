"""The verdict is true only when client and sidecar both saw every target met, often enough."""

import math
from dataclasses import replace
from typing import Any

import pytest

from paceline_cli.demo.demo_run import judge, opening, rolling_p99
from paceline_cli.traffic.client_span import ClientSpan, span
from paceline_cli.traffic.record import ClientRecord
from paceline_testing.reports import observed
from paceline_tuner.service_report import MeasuredLatency
from paceline_tuner.service_spec import SLA

TARGETS = SLA(ttft_p99_ms=1000.0, itl_p99_ms=400.0)


def a_record(planned_at: float, *token_ats: float, **changes: Any) -> ClientRecord:
    fields: dict[str, Any] = {
        "planned_at": planned_at,
        "sent_at": planned_at,
        "token_ats": token_ats,
        "finished_at": token_ats[-1] if token_ats else planned_at,
        "prompt_tokens": 10,
        "output_tokens": len(token_ats),
        "outcome": "ok" if token_ats else "failed",
    }
    return ClientRecord(**(fields | changes))


REFUSED = a_record(0.0, outcome="refused", error="429: the queue is full")


def a_span(*, requests: int = 60, ttft_ms: float = 500.0, itl_ms: float = 300.0) -> ClientSpan:
    record = a_record(0.0, ttft_ms / 1e3) if math.isfinite(ttft_ms) else REFUSED
    return ClientSpan(
        seconds=60.0,
        due=(record,) * requests,
        itl_ms=(itl_ms,) * 1000,
        output_tokens=1000,
    )


@pytest.mark.parametrize(
    ("client", "sidecar", "words"),
    [
        (a_span(itl_ms=500.0), observed(), "client: ITL p99 500 ms, target 400 ms"),
        (
            a_span(ttft_ms=math.inf),
            observed(),
            (
                "client: TTFT p99 is of a request without an answer, target 1,000 ms; "
                "client: 60 of 60 requests got no whole answer "
                "(the first refused: 429: the queue is full)."
            ),
        ),
        (a_span(), observed(itl_p99_ms=450.0), "sidecar: ITL p99 450 ms, target 400 ms"),
        (a_span(), observed(itl_p99_ms=None), "sidecar: ITL p99 was not measured"),
        (a_span(), None, "sidecar: no measurement"),
        (a_span(requests=3), observed(), "Not shown: 3 requests"),
        (replace(a_span(), itl_ms=(1.0,) * 9), observed(), "Not shown: 60 requests and 9 gaps"),
    ],
    ids=["itl", "no answers", "sidecar", "unmeasured", "silent", "few requests", "few gaps"],
)
def test_anything_less_is_a_no_with_its_cause(
    client: ClientSpan, sidecar: MeasuredLatency | None, words: str
) -> None:
    """The exit status rests on this: no doubt is resolved in our favour."""
    verdict = judge(TARGETS, client, sidecar)

    assert not verdict.holds
    assert words in verdict.sentence


def test_every_target_met_at_both_ends_is_a_yes_with_its_numbers() -> None:
    """What was measured, beside what was promised."""
    verdict = judge(TARGETS, a_span(), observed())

    assert verdict.holds
    assert verdict.sentence == (
        "The SLA holds: TTFT p99 500 ms of 1,000 ms, ITL p99 300 ms of 400 ms."
    )


def test_the_opening_says_whether_the_declared_limits_missed_anything() -> None:
    """A run that had nothing to mend must not look like one that mended something."""
    missed = opening(TARGETS, observed(itl_p99_ms=450.0))

    assert missed == "The declared limits missed the SLA: ITL p99 450 ms, target 400 ms."
    assert "nothing to mend" in opening(TARGETS, observed())


def test_a_span_takes_requests_by_due_time_and_gaps_by_their_end() -> None:
    """A stall that ends after the border belongs to the time after it."""
    records = [a_record(9.0, 9.5, 10.5), a_record(10.0, 10.25, 10.5), a_record(20.0, 20.1)]

    cut = span(records, 10.0, 20.0)

    assert cut.offered == 1
    assert cut.ttft_ms == pytest.approx((250.0,))
    assert cut.itl_ms == pytest.approx((1000.0, 250.0))


def test_a_request_without_an_answer_waits_forever() -> None:
    """A server must not look fast by refusing."""
    cut = span([a_record(1.0, 1.1), a_record(2.0)], 0.0, 10.0)

    assert len(cut.misses) == 1
    assert cut.ttft_ms == pytest.approx((100.0, math.inf))
    assert cut.observed(TARGETS).ttft_p99_ms == math.inf


def test_attainment_is_the_lesser_share_of_requests_and_gaps() -> None:
    """As the tuner counts: slow gaps among gaps, late and unanswered requests among requests."""
    slow_gap = [a_record(0.0, 0.5, 0.6, 0.7, 1.2), a_record(0.0, 0.5, 0.6)]
    late = [*slow_gap, a_record(0.0, 1.5, 1.6), a_record(0.0)]

    assert span(slow_gap, 0.0, 10.0).observed(TARGETS).attainment == 0.75
    assert span(late, 0.0, 10.0).observed(TARGETS).attainment == 0.5


def test_a_rolling_p99_forgets_what_is_older_than_its_window() -> None:
    """And is a gap in the line where nothing was measured."""
    points = [(1.0, 900.0), (3.0, 100.0)]

    series = rolling_p99(points, start=0.0, end=6.0, window_s=2.0, step_s=1.0)

    assert [ms for _, ms in series] == [900.0, 900.0, 100.0, 100.0, None, None]
