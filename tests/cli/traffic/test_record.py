"""Latencies of one request, and percentiles over many."""

import pytest

from paceline_cli.sla_targets import missed_targets, targets
from paceline_cli.traffic.client_span import span
from paceline_cli.traffic.record import ClientRecord, percentile
from paceline_tuner.service_spec import SLA, PromptClass


def a_record(**changes: object) -> ClientRecord:
    fields: dict[str, object] = {
        "planned_at": 10.0,
        "sent_at": 10.1,
        "token_ats": (10.5, 10.6, 10.9),
        "finished_at": 10.9,
        "prompt_tokens": 12,
        "output_tokens": 3,
        "outcome": "ok",
    }
    return ClientRecord(**(fields | changes))  # type: ignore[arg-type] # a builder takes any field


def test_ttft_counts_from_the_planned_time() -> None:
    """A client that sends late must not flatter the server."""
    assert a_record().ttft_ms == pytest.approx(500.0)


def test_tpot_is_the_mean_and_itl_is_every_gap() -> None:
    """One stall hides in the mean and shows in the gaps."""
    record = a_record()

    assert record.tpot_ms == pytest.approx(200.0)
    assert record.itls_ms == pytest.approx((100.0, 300.0))


def test_a_request_without_tokens_has_no_latency() -> None:
    """A refused request is a miss, not a zero."""
    record = a_record(token_ats=(), output_tokens=0, outcome="refused")

    assert (record.ttft_ms, record.tpot_ms, record.itls_ms) == (None, None, ())


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.99, None), ([5.0], 0.99, 5.0), (range(1, 101), 0.99, 99), (range(1, 102), 0.99, 100)],
    ids=["none", "one", "hundred", "hundred and one"],
)
def test_percentile_is_a_value_that_was_seen(
    values: list[float], share: float, expected: float | None
) -> None:
    """Nearest rank: never an invented number between two."""
    assert percentile(values, share) == expected


def test_a_client_judges_each_request_by_the_class_of_its_prompt() -> None:
    """By the tokens that the server counted; without an answer it counts as a short one."""
    classes = (PromptClass(100, 400.0), PromptClass(None, 900.0))
    sla = SLA(900.0, ttft_by_prompt_tokens=classes)
    records = [
        a_record(),
        a_record(prompt_tokens=101),
        a_record(token_ats=(), prompt_tokens=0, output_tokens=0, outcome="refused"),
    ]

    seen = span(records, 0.0, 20.0).observed(sla)

    assert [(each.requests, each.missed) for each in seen.by_prompt_tokens] == [(2, 2), (1, 0)]
    assert seen.attainment == pytest.approx(1 / 3)
    assert [name for name, _, _ in targets(sla, seen)] == ["TTFT 1-100", "TTFT 101-"]
    assert missed_targets(sla, seen) == ["TTFT 1-100 p99 500 ms, target 400 ms"]


def test_a_client_measures_end_to_end_where_it_is_declared() -> None:
    """From the planned time to the end."""
    seen = span([a_record()], 0.0, 20.0).observed(SLA(e2e_p99_ms=1000.0))

    assert seen.e2e_p99_ms == pytest.approx(900.0)
    assert seen.attainment == 1.0
