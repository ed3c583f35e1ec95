"""What answers say of the pod's load, as gateways read it."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from paceline_sidecar.backend import EngineView
from paceline_sidecar.load_report import HEADER, Load, LoadMeter, read_format
from paceline_sidecar.metrics.finished_request import FinishedRequest, Outcome
from paceline_sidecar.metrics.ledger import Ledger
from paceline_testing.clock import ManualClock
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import CAPACITY, ScriptedEngine
from paceline_testing.waiting import wait_until
from paceline_wire import Limits, LimitsState

_COMPLETION = {"model": "scripted", "prompt": "Hi"}


def a_view(*, batch_size: int = 4, lease_lost: bool = False) -> EngineView:
    held = Limits(batch_size, 256)
    limits = LimitsState(
        call=0,
        requested=held,
        effective=held,
        certified=held,
        capacity=CAPACITY,
        epoch=1,
        since_step=0,
        lease_expires_at=None,
        lease_lost=lease_lost,
        clamped=[],
    )
    return EngineView(phase="ready", instance="one", limits=limits)


def at_rate(meter: LoadMeter, clock: ManualClock, rps: float, *, seconds: float = 60) -> None:
    """Have requests come at this rate, each over before the next."""
    for _ in range(round(rps * seconds)):
        meter.offered()
        meter.began()
        clock.advance(0.5 / rps)
        meter.ended()
        clock.advance(0.5 / rps)


def a_meter_that_refuses(clock: ManualClock) -> LoadMeter:
    """Return one of a pod with a λ* of 8, which has let in nobody for twenty seconds."""
    meter = LoadMeter(clock)
    meter.told(8.0, "one")
    for _ in range(200):
        meter.offered()
        clock.advance(0.1)
    return meter


def ended(ledger: Ledger, outcome: Outcome, times: int) -> None:
    for _ in range(times):
        ledger.ended(FinishedRequest("interactive", 0.0, 1.0, outcome))


def test_with_a_known_capacity_the_weight_is_that_capacity() -> None:
    """Envoy divides the rate by the utilization: λ / (λ/λ*)."""
    clock = ManualClock()
    meter = LoadMeter(clock)
    meter.told(8.0, "one")
    at_rate(meter, clock, 2.0)

    load = meter.load(a_view(), Ledger(), waiting=0)

    assert load.utilization == pytest.approx(0.25, rel=0.05)
    assert load.served_rps / load.utilization == pytest.approx(8.0)


@given(hundredths=st.integers(1, 20_000), rps=st.floats(0.01, 100.0))
def test_a_weight_that_envoy_cuts_is_the_same_in_every_report(hundredths: int, rps: float) -> None:
    """Rounding is no reason for 7 where 8 was told."""
    clock = ManualClock()
    meter, view, ledger = LoadMeter(clock), a_view(), Ledger()
    meter.told(hundredths / 100, "one")
    at_rate(meter, clock, rps, seconds=5 / rps)

    told = meter.load(view, ledger, waiting=0).totals()

    weight = told["rps_fractional"] / told["application_utilization"]
    assert int(weight) == hundredths


@pytest.mark.parametrize("idle_s", [0.0, 5.0, 60.0, 3600.0, 1e6])
@pytest.mark.parametrize("capacity_rps", [0.02, 8.0, 900.0])
def test_a_pod_without_requests_keeps_its_weight(capacity_rps: float, idle_s: float) -> None:
    """Gateways hear of it between answers, too, when both rates have come near to zero."""
    clock = ManualClock()
    meter = LoadMeter(clock)
    meter.told(capacity_rps, "one")
    at_rate(meter, clock, capacity_rps / 4, seconds=60 / capacity_rps)
    clock.advance(idle_s)

    load = meter.load(a_view(), Ledger(), waiting=0).totals()

    assert load["application_utilization"] >= 0.001
    weight = load["rps_fractional"] / load["application_utilization"]
    assert weight == pytest.approx(100 * capacity_rps, rel=1e-4)


def test_what_was_refused_is_forgotten_without_requests() -> None:
    """Else a pod that refused for a moment would get none to show that it takes them again."""
    clock = ManualClock()
    meter = a_meter_that_refuses(clock)
    clock.advance(90.0)

    load = meter.load(a_view(), Ledger(), waiting=0)

    assert load.served_rps / load.utilization > 0.9 * 8


def test_a_request_that_has_just_begun_gives_no_great_weight() -> None:
    """Its rate is there at once, and how busy the pod is grows from nothing."""
    clock = ManualClock()
    meter = LoadMeter(clock)
    meter.offered()
    meter.began()
    clock.advance(0.1)

    load = meter.load(a_view(batch_size=64), Ledger(), waiting=0)

    assert load.served_rps / load.utilization <= 100


@pytest.mark.parametrize(
    ("idle_s", "is_told", "has_news"),
    [(0.0, False, True), (600.0, False, False), (600.0, True, True)],
    ids=["busy", "forgotten", "told"],
)
def test_what_nobody_knows_is_no_news(idle_s: float, *, is_told: bool, has_news: bool) -> None:
    """Without λ* a weight comes from requests, of which none may have come for long."""
    clock = ManualClock()
    meter = LoadMeter(clock)
    if is_told:
        meter.told(8.0, "one")
    at_rate(meter, clock, 2.0)
    clock.advance(idle_s)

    assert meter.has_news(a_view()) is has_news
    assert not LoadMeter(clock).has_news(a_view())


def test_without_one_it_is_the_share_of_the_batch_that_is_taken() -> None:
    """One request of four places runs half of the time."""
    clock = ManualClock()
    meter = LoadMeter(clock)
    at_rate(meter, clock, 2.0)

    load = meter.load(a_view(batch_size=4), Ledger(), waiting=3)

    assert load.utilization == pytest.approx(0.125, rel=0.05)
    assert (load.waiting, load.is_sla_violated) == (3, False)


@pytest.mark.parametrize(
    "view", [a_view(lease_lost=True), EngineView(limits=a_view().limits, instance="another")]
)
def test_what_was_told_of_another_engine_or_by_an_operator_that_left_is_dropped(
    view: EngineView,
) -> None:
    """An old λ* would hold a gateway to a load that nobody has measured."""
    meter = LoadMeter(ManualClock())
    meter.told(8.0, "one")

    assert meter.capacity_rps(view) is None
    assert meter.capacity_rps(a_view()) == 8.0


def test_refused_requests_lower_the_weight() -> None:
    """A pod that refuses at once must not draw more than one that serves."""
    clock = ManualClock()
    meter = a_meter_that_refuses(clock)

    load = meter.load(a_view(), Ledger(), waiting=0)

    assert load.utilization > 1
    assert load.served_rps / load.utilization < 0.02 * 8


@pytest.mark.parametrize(
    ("missed", "utilization"),
    [(0, 0.001), (2, 0.001), (30, 1.0)],
    ids=["met", "by chance", "missed"],
)
def test_a_violated_sla_counts_as_full(missed: int, utilization: float) -> None:
    """So the gateway gives less, however idle the pod looks."""
    clock, ledger = ManualClock(), Ledger()
    meter = LoadMeter(clock)
    meter.load(a_view(), ledger, waiting=0)
    ended(ledger, "ok", 70)
    ended(ledger, "timeout", missed)

    load = meter.load(a_view(), ledger, waiting=0)
    clock.advance(61)
    meter.load(a_view(), ledger, waiting=0)
    clock.advance(61)
    later = meter.load(a_view(), ledger, waiting=0)

    assert (load.utilization, load.is_sla_violated) == (utilization, missed > 2)
    assert not later.is_sla_violated


def test_both_formats_are_those_that_envoy_reads() -> None:
    """JSON unless TEXT is asked for, by vLLM's header."""
    load = Load(0.25, 2.0, waiting=3, kv_share=0.5, is_sla_violated=True)

    assert load.header("JSON") == (
        'JSON {"application_utilization":0.25,"rps_fractional":200.004,"named_metrics":'
        '{"num_requests_waiting":3,"kv_cache_usage_perc":0.5,"sla_violated":1}}'
    )
    assert load.header("TEXT") == (
        "TEXT application_utilization=0.25,rps_fractional=200.004"
        ",named_metrics.num_requests_waiting=3"
        ",named_metrics.kv_cache_usage_perc=0.5,named_metrics.sla_violated=1"
    )
    assert read_format(Headers({"endpoint-load-metrics-format": "text"})) == "TEXT"
    assert read_format(Headers({})) == "JSON"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_answers_report_and_pages_do_not(sidecar_of_module: Sidecar, *, stream: bool) -> None:
    """A stream reports when it begins: HTTP/1.1 has its headers before its body."""
    body = _COMPLETION | {"stream": stream}

    answer = sidecar_of_module.public.post("/v1/completions", json=body)
    refused = sidecar_of_module.public.post("/v1/completions", json={"prompt": 7})
    page = sidecar_of_module.public.get("/v1/models")

    kind, text = answer.headers[HEADER].split(" ", 1)
    report = json.loads(text)
    assert kind == "JSON"
    assert report["application_utilization"] > 0
    assert report["rps_fractional"] > 0
    assert HEADER in refused.headers
    assert HEADER not in page.headers


def test_what_the_operator_says_is_shown_and_reported(sidecar: Sidecar) -> None:
    """It comes with a renewal as well as with a change."""
    first = {"epoch": 1, "lease_s": 60, "capacity_rps": 8}
    again = {"epoch": 1, "lease_s": 60, "capacity_rps": 1e-3}
    assert sidecar.admin.patch("/runtime/limits", json=first).json()["capacity_rps"] == 8
    assert sidecar.admin.patch("/runtime/limits", json=again).json()["capacity_rps"] == 1e-3

    answer = sidecar.public.post("/v1/completions", json=_COMPLETION)

    report = json.loads(answer.headers[HEADER].removeprefix("JSON "))
    assert report["application_utilization"] > 50


def test_reports_can_be_switched_off(engine: ScriptedEngine, start: Callable[..., Sidecar]) -> None:
    """Where the port is open to those who are not to know the load."""
    del engine
    sidecar = start(load_report=False)
    wait_until(sidecar.ready)

    answer = sidecar.public.post("/v1/completions", json=_COMPLETION)

    assert answer.status_code == 200
    assert HEADER not in answer.headers
