"""The page of a pod shows what the tuner measures of it."""

import random

import msgspec
import pytest

from paceline_cli.sla_targets import all_targets
from paceline_sidecar.hot_config import HotConfig, PromptClass, Sla
from paceline_sidecar.live.measured import WINDOW_S, measure
from paceline_sidecar.metrics.finished_request import FinishedRequest, Outcome
from paceline_sidecar.metrics.ledger import LANES, Ledger
from paceline_sidecar.runtime_bodies import request_of, sketch_of
from paceline_testing.telemetry import a_limits, a_telemetry
from paceline_tuner.attainment import observe
from paceline_tuner.lanes import judged
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.telemetry import decode_telemetry
from paceline_tuner.window import Window

NOW = 1000.0
OUTCOMES: tuple[Outcome, ...] = ("ok", "ok", "ok", "cancelled", "shed")
CLASSES = (PromptClass(2000, 500.0), PromptClass(None, 5000.0))


def a_ledger(config: HotConfig) -> Ledger:
    """Two minutes of requests of both lanes and of gaps."""
    chance, ledger = random.Random(7), Ledger()
    ledger.follow(config)
    for n in range(600):
        at = NOW - 120 + n / 5
        lane = chance.choice(LANES)
        for _ in range(9):
            ledger.gap(lane, chance.choice((0.0, chance.uniform(1, 300))), at)
        ledger.ended(
            FinishedRequest(
                lane,
                at - 3.0,
                at,
                chance.choice(OUTCOMES),
                ttft_ms=chance.choice((None, chance.uniform(10, 900))),
                tpot_ms=chance.uniform(1, 90),
                prompt_tokens=chance.randint(1, 4000),
                output_tokens=10,
            )
        )
    return ledger


@pytest.mark.parametrize(
    "config",
    [
        HotConfig(sla=Sla(ttft_p99_ms=500.0, itl_p99_ms=200.0)),
        HotConfig(sla=Sla(tpot_p99_ms=50.0, objective=0.9), batch_sla=Sla(ttft_p99_ms=9000.0)),
        HotConfig(sla=Sla(ttft_p99_ms=5000.0, ttft_by_prompt_tokens=CLASSES, e2e_p99_ms=2000.0)),
    ],
    ids=["p99", "p90-of-one-lane", "classes-and-whole"],
)
def test_both_measure_the_same(config: HotConfig) -> None:
    """Names, targets and quantiles; a person compares the page with the service's status."""
    ledger = a_ledger(config)
    gaps = [part for lane in ledger.lanes.values() for part in lane.gaps.slices()]
    told = msgspec.to_builtins(a_telemetry(NOW, limits=a_limits())) | {
        "requests": [request_of(one.seq, one.record) for one in ledger.requests.since(0)],
        "sketches": [sketch_of(part) for part in gaps],
    }
    window = Window()
    window.add(decode_telemetry(msgspec.json.encode(told)))
    evidence = window.evidence(WINDOW_S)
    assert evidence is not None
    sla = _read(config.sla)
    assert sla is not None
    spec = TuningSpec(sla=sla, batch_sla=_read(config.batch_sla))
    theirs, _ = observe(sla, judged(spec, evidence))

    ours = measure(ledger, config, NOW)

    for row, (name, target, value) in zip(ours.rows, all_targets(sla, theirs), strict=True):
        assert (row.name, row.target_ms) == (name, target)
        assert row.seen_ms == pytest.approx(value)
    assert ours.samples > 100


def _read(sla: Sla | None) -> SLA | None:
    return msgspec.convert(msgspec.to_builtins(sla), SLA | None)
