"""Targets by prompt length from the manifest to the sidecar, and beside those of before."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from paceline_api.pod.runtime_config import runtime_config
from paceline_api.tuning_spec import tuning_spec
from paceline_sidecar.hot_config import HotConfig
from paceline_sidecar.metrics.finished_request import FinishedRequest, Outcome
from paceline_sidecar.metrics.ring import Numbered
from paceline_sidecar.metrics.sample import by_class as kind_when_written
from paceline_sidecar.metrics.sample import sampled_requests as written
from paceline_sidecar.runtime_bodies import request_of, request_row
from paceline_sidecar.runtime_patch import ConfigPatch, merged
from paceline_testing.services import a_service
from paceline_tuner.lanes import by_class as kind_when_read
from paceline_tuner.patch import sla_body
from paceline_tuner.sample import sampled_requests as read
from paceline_tuner.service_spec import TuningSpec
from paceline_tuner.telemetry import RequestRecord, SlaValues

CLASSES = [{"upTo": 2000, "p99": "500ms"}, {"upTo": 8000, "p99": "2s"}, {"p99": "5s"}]
KNOWN_BEFORE = {"ttft_p99_ms", "tpot_p99_ms", "itl_p99_ms", "objective"}
"""What sidecars of 0.2 take in `sla`."""


def a_spec() -> TuningSpec:
    sla = {"ttft": {"byPromptTokens": CLASSES}}
    return tuning_spec(a_service(sla=sla, lanes={"batch": {"sla": sla}}).spec)


def obeyed(body: object, config: HotConfig | None = None) -> HotConfig:
    patch = msgspec.json.decode(msgspec.json.encode(body), type=ConfigPatch)
    return merged(config or HotConfig(), patch)


def told(config: HotConfig) -> SlaValues:
    """What the sidecar says that it holds."""
    return msgspec.json.decode(msgspec.json.encode(config.sla), type=SlaValues)


@settings(deadline=None)
@given(prompt_tokens=st.integers(0, 20_000))
def test_operator_and_sidecar_have_one_target_for_a_prompt(prompt_tokens: int) -> None:
    """And what the sidecar says it holds is what was declared, so it is told once."""
    sla = a_spec().sla

    config = obeyed({"sla": sla_body(sla, knows_e2e=True, knows_classes=True)})

    assert config.sla.ttft_ms(prompt_tokens) == sla.ttft_ms(prompt_tokens)
    assert told(config).sla == sla
    assert not told(config).lacks(sla)


def test_the_file_that_pods_start_from_is_one_that_sidecars_of_before_read() -> None:
    """They refuse unknown fields, and an upgrade of the operator leaves their images."""
    body = runtime_config(a_spec())

    for lane in ("sla", "batch_sla"):
        assert body[lane].keys() == KNOWN_BEFORE
        assert body[lane]["ttft_p99_ms"] == 5000.0


def test_a_sidecar_that_started_from_the_file_is_then_told_the_classes() -> None:
    """It knows them, and says that it has none."""
    spec = a_spec()
    started = obeyed(runtime_config(spec))

    assert started.config_hash == spec.config_hash
    assert told(started).lacks(spec.sla)


def test_a_sidecar_of_before_is_known_by_what_it_does_not_say() -> None:
    before = msgspec.json.decode(b'{"ttft_p99_ms": 5000.0}', type=SlaValues)

    assert before.ttft_by_prompt_tokens is UNSET
    assert not before.lacks(a_spec().sla)


def test_an_operator_of_before_leaves_one_target_for_all_prompts() -> None:
    """It sends every field that it knows, and none of the classes."""
    spec = a_spec()
    classed = obeyed({"sla": sla_body(spec.sla, knows_e2e=True, knows_classes=True)})
    older: dict[str, Any] = {"ttft_p99_ms": 900.0, "tpot_p99_ms": None, "itl_p99_ms": None}

    config = obeyed({"sla": older}, classed)

    assert config.sla.ttft_ms(1) == config.sla.ttft_ms(9000) == 900.0


@pytest.mark.parametrize("count", [10, 60, 417])
def test_both_ends_choose_the_same_requests_of_each_class(count: int) -> None:
    """Whoever takes the sample: the sidecar, or the operator from an older one's records."""
    chance, spec = random.Random(count), a_spec()
    outcomes: tuple[Outcome, ...] = ("ok", "ok", "shed")
    requests = [
        Numbered(
            n,
            FinishedRequest(
                chance.choice(("interactive", "batch")),
                90.0,
                100.0 + 5.0 * n / count,
                chance.choice(outcomes),
                ttft_ms=chance.choice((None, chance.uniform(10, 9000))),
                tpot_ms=chance.uniform(1, 90),
                prompt_tokens=chance.randint(1, 12_000),
                output_tokens=chance.randint(1, 500),
            ),
        )
        for n in range(1, count + 1)
    ]
    records = msgspec.convert(
        [msgspec.to_builtins(request_of(one.seq, one.record)) for one in requests],
        list[RequestRecord],
    )
    sla = sla_body(spec.sla, knows_e2e=True, knows_classes=True)
    config = obeyed({"sla": sla, "batch_sla": sla})

    sent = [request_row(group) for group in written(requests, 24, kind_when_written(config))]
    chosen = read(records, 24, kind_when_read(spec))

    assert [(row.seq, row.weight) for row in sent] == [(r.seq, r.weight) for r in chosen]
    assert sum(row.weight for row in sent) == count
