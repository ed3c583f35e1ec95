"""What a run measured: every offered request counts, and what was left out is not in it."""

import math

import pytest

from paceline_cli.bench.cells import headline_rows, quantile_cell
from paceline_cli.bench.measures import measure
from paceline_cli.traffic.record import ClientRecord, Outcome
from paceline_tuner.service_spec import SLA


def a_record(at: float, *, outcome: Outcome = "ok", gap_s: float = 0.1) -> ClientRecord:
    """A first token after 200 ms, and four more."""
    has_answer = outcome in {"ok", "cancelled"}
    return ClientRecord(
        planned_at=at,
        sent_at=at,
        token_ats=tuple(at + 0.2 + gap_s * i for i in range(5)) if has_answer else (),
        finished_at=at + 0.2 + 4 * gap_s,
        prompt_tokens=20,
        output_tokens=5 if has_answer else 0,
        outcome=outcome,
    )


def test_a_request_without_an_end_waits_forever() -> None:
    """Else a run that loses its slow requests would look fast; the mean says of whom it is."""
    seen = measure([a_record(0.0), a_record(1.0, outcome="timeout")], 0.0, 10.0)

    assert (seen.offered, seen.unanswered, seen.outcomes) == (2, 1, {"ok": 1, "timeout": 1})
    assert seen.e2e.at(0.99).ms.value == math.inf
    assert seen.e2e.at(0.5).ms.value == pytest.approx(600.0)
    assert seen.e2e.mean_ms.value == pytest.approx(600.0)
    assert seen.output_tokens_per_s.value == pytest.approx(0.5)
    assert quantile_cell(seen.ttft.at(0.99)) == "no answer"


def test_attainment_counts_all_offered_and_goodput_what_was_in_time() -> None:
    """A refused request is a miss; a late gap makes a request late."""
    records = [
        *(a_record(float(i)) for i in range(6)),
        *(a_record(float(i), gap_s=0.4) for i in range(6, 8)),
        *(a_record(float(i), outcome="refused") for i in range(8, 10)),
    ]

    seen = measure(records, 0.0, 10.0, SLA(ttft_p99_ms=500.0, itl_p99_ms=200.0))

    assert seen.attainment.value == pytest.approx(24 / 32)  # of gaps: less than 8 of 10 requests
    assert seen.goodput_rps.value == pytest.approx(0.6)
    assert seen.goodput_tokens_per_s.value == pytest.approx(3.0)
    assert seen.requests_per_s.value == pytest.approx(0.8)


def test_without_targets_nothing_is_good_or_bad() -> None:
    """No attainment is better than one of 100 %."""
    seen = measure([a_record(0.0)], 0.0, 10.0)

    assert (seen.attainment.value, seen.goodput_rps.value) == (None, None)
    assert "goodput" not in dict(headline_rows(seen))


def test_a_client_that_left_is_neither_offered_nor_missed() -> None:
    """It was planned so; its tokens were served all the same."""
    seen = measure([a_record(0.0), a_record(1.0, outcome="cancelled")], 0.0, 10.0, SLA(500.0))

    assert (seen.offered, seen.cancelled, seen.unanswered) == (1, 1, 0)
    assert seen.attainment.value == 1.0
    assert seen.output_tokens_per_s.value == pytest.approx(1.0)


def test_a_warm_up_is_in_no_figure() -> None:
    """The first requests meet cold caches."""
    seen = measure([a_record(0.0, gap_s=9.0), a_record(50.0)], 40.0, 60.0)

    assert seen.offered == 1
    assert seen.itl.max_ms == pytest.approx(100.0)


def test_a_quantile_of_too_few_is_said_to_be_a_maximum() -> None:
    """And below 368 values nobody knows how high a p99 may be."""
    few, some, many = (
        quantile_cell(measure([a_record(i / 10) for i in range(n)], 0.0, 1e3).ttft.at(0.99))
        for n in (99, 100, 400)
    )

    assert few == "max 200"
    assert some == "200 (200-)"
    assert many == "200 (200-200)"
