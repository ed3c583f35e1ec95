"""The content of the page says what is known, and None of the rest."""

import msgspec
import pytest

from paceline_cli.live_page.content import content
from paceline_cli.live_page.history import Past
from paceline_cli.up.screen import LiveView
from paceline_page.content import Bar, State, histogram
from paceline_testing.reports import a_change, a_pod_report, a_report, observed
from paceline_tuner.service_report import ServiceReport, TokenCost
from paceline_tuner.service_spec import SLA, TuningSpec

SPEC = TuningSpec(sla=SLA(ttft_p99_ms=8000.0, itl_p99_ms=400.0))


def a_view(report: ServiceReport | None = None, state: str = "serving") -> LiveView:
    return LiveView("quickstart", "builtin://m", "http://127.0.0.1:8000", SPEC, state, report)


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        ("loading the model", State("loading", "loading the model")),
        ("not ready: the engine is loading: fetching 7%", State("loading", "fetching", 0.07)),
        ("serving", State("serving", "serving")),
        ("restarting the engine", State("down", "restarting the engine")),
        ("the sidecar does not answer", State("down", "the sidecar does not answer")),
    ],
    ids=["starts", "loads", "serves", "restarts", "silent"],
)
def test_each_phase_is_a_state(phase: str, state: State) -> None:
    """The page needs to know only whether to warn, and what to say."""
    assert content(a_view(state=phase), (), (), None).state == state


def test_before_the_first_report_nothing_is_made_up() -> None:
    """A figure that is not known is None, and the targets stand already."""
    shown = content(a_view(), (), (), None)

    assert [(each.name, each.target_ms, each.seen_ms) for each in shown.latencies] == [
        ("TTFT", 8000.0, None),
        ("TPOT", None, None),
        ("ITL", 400.0, None),
    ]
    assert shown.work.running is None
    assert shown.limits.batch_size is None
    assert shown.advice_note == "nothing is measured yet"
    assert msgspec.json.decode(msgspec.json.encode(shown))["quantile"] == "p99"


@pytest.mark.parametrize("cost", [TokenCost(per_million_output=1.25, per_million_total=0.5), None])
def test_the_cost_stands_where_a_price_is_declared(cost: TokenCost | None) -> None:
    """The page says what a million output tokens cost, as the terminal does."""
    shown = content(a_view(a_report(cost=cost)), (), (), None)

    assert shown.work.cost_per_million_output == (cost.per_million_output if cost else None)


def test_every_series_has_a_value_at_each_time() -> None:
    """A tick without a measurement is a gap, not a missing point."""
    history = Past()
    for itl_ms in (300.0, None, 500.0):
        pod = a_pod_report(observed=observed(itl_p99_ms=itl_ms))
        history.add(SPEC, a_report(pods=(pod,)))

    shown = content(a_view(a_report()), history.points, history.changes, None)

    assert shown.latencies[2].series == (300.0, None, 500.0)
    assert len(shown.history.times) == len(shown.history.waiting) == 3


def test_a_change_is_told_once_and_the_newest_come_first() -> None:
    """A report repeats the newest five."""
    history = Past()
    changes = [a_change(at=float(at)) for at in range(80)]
    for newest in range(5, 81):
        history.add(SPEC, a_report(history=tuple(reversed(changes[newest - 5 : newest]))))

    shown = content(a_view(a_report()), history.points, history.changes, None)

    assert [change.at for change in shown.changes] == [float(at) for at in range(79, 29, -1)]


def test_a_histogram_counts_every_step_in_few_bars() -> None:
    """Up to sixteen bars of one width, whatever the batch size."""
    few = [(0, 1), (2, 1), (2, 3)]
    many = [(each, 1) for each in range(257)]

    assert histogram(few) == (Bar(0, 0, 1), Bar(1, 1, 0), Bar(2, 2, 4))
    assert sum(bar.steps for bar in histogram(many)) == 257
    assert len(histogram(many)) <= 16
    assert histogram([]) == ()
