"""First-token targets by prompt length: judged class by class, sent to pods, and reported."""

import json
import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from paceline_api.tuning_spec import tuning_spec
from paceline_api.validate import validate
from paceline_operator.report_news import is_news
from paceline_operator.service_status import sla_status
from paceline_testing.services import a_manifest
from paceline_testing.telemetry import a_limits, a_request, a_telemetry
from paceline_tuner.attainment import NOTHING, combined, count, observe, verdict
from paceline_tuner.decide import decide
from paceline_tuner.lanes import by_class, starting_batch_target_ms
from paceline_tuner.latency_sketch import LatencySketch
from paceline_tuner.patch import patch_body
from paceline_tuner.pod_state import PodState
from paceline_tuner.sample import SAMPLE, sampled_requests
from paceline_tuner.service_report import MeasuredLatency, ServiceReport
from paceline_tuner.service_spec import SLA, PromptClass, TuningSpec
from paceline_tuner.sla_conditions import sla_met
from paceline_tuner.telemetry import LimitsAnswer, LimitValues, RequestRecord, SlaValues
from paceline_tuner.warm_start_entry import is_as_strict
from paceline_tuner.window import Evidence, Window

CLASSES = (PromptClass(2000, 500.0), PromptClass(8000, 2000.0), PromptClass(None, 5000.0))
BY_PROMPT = SLA(ttft_p99_ms=5000.0, ttft_by_prompt_tokens=CLASSES)
NO_GAPS = LatencySketch(())

rising = st.lists(st.integers(1, 10**6), min_size=0, max_size=7, unique=True).map(sorted)


@settings(deadline=None)
@given(ends=rising, prompt_tokens=st.integers(0, 2 * 10**6))
def test_every_prompt_is_of_the_first_class_that_holds_it(
    ends: list[int], prompt_tokens: int
) -> None:
    """An end belongs to its class; the last class takes all that are longer."""
    targets = [100.0 * (place + 1) for place in range(len(ends) + 1)]
    sla = SLA(
        ttft_p99_ms=targets[-1],
        ttft_by_prompt_tokens=tuple(map(PromptClass, [*ends, None], targets)),
    )

    shorter = sum(end < prompt_tokens for end in ends)

    assert sla.class_of(prompt_tokens) == shorter
    assert sla.ttft_ms(prompt_tokens) == targets[shorter]
    assert [sla.class_of(least) for least in sla.shortest_prompts] == [*range(len(ends) + 1)]


def test_without_classes_all_prompts_have_one_target() -> None:
    assert SLA(ttft_p99_ms=700.0).ttft_ms(10**6) == 700.0
    assert SLA().ttft_ms(1) is None
    assert SLA(ttft_p99_ms=700.0).shortest_prompts == (1,)


def a_service(*classes: dict[str, object], batch: bool = False) -> TuningSpec:
    """What the tuner reads of a manifest."""
    manifest = a_manifest()
    sla = {"ttft": {"byPromptTokens": [*classes]}}
    manifest["spec"] |= {"lanes": {"batch": {"sla": sla}}} if batch else {"sla": sla}
    return tuning_spec(validate(manifest).spec)


def test_a_manifest_says_the_classes_and_the_loosest_is_for_whoever_knows_one() -> None:
    """A sidecar of before refuses nobody whom a newer one would serve in time."""
    spec = a_service({"upTo": 2000, "p99": "500ms"}, {"p99": "5s"})

    assert spec.sla.ttft_p99_ms == 5000.0
    assert spec.sla.ttft_by_prompt_tokens == (PromptClass(2000, 500.0), PromptClass(None, 5000.0))


def served(seq: int, prompt_tokens: int, ttft_ms: float | None, **fields: object) -> RequestRecord:
    return a_request(seq, 90.0 + seq / 100, prompt_tokens=prompt_tokens, ttft_ms=ttft_ms, **fields)


def seen(records: list[RequestRecord], limits: LimitsAnswer | None = None) -> Evidence:
    window = Window()
    window.add(a_telemetry(100.0, limits=limits or a_limits(), requests=tuple(records)))
    evidence = window.evidence(60.0)
    assert evidence is not None
    return evidence


def test_a_request_is_judged_by_the_class_of_its_whole_prompt() -> None:
    """Cached tokens count: a client knows how long its prompt is, not what the cache holds."""
    records = [
        served(1, 2000, 600.0),
        served(2, 2001, 600.0),
        served(3, 9000, 600.0, cached_tokens=8900),
        served(4, 9000, 5001.0),
    ]

    assert count(BY_PROMPT, records, NO_GAPS).missed_requests == 2


def short_ones_late(late: int = 5, long: int = 900) -> list[RequestRecord]:
    """Long prompts in time, and 50 short ones of which some are late."""
    return [served(n, 9000, 1000.0) for n in range(long)] + [
        served(long + n, 100, 800.0 if n < late else 90.0) for n in range(50)
    ]


def test_a_class_that_fails_is_a_violation_however_few_requests_it_has() -> None:
    """One in two hundred requests is late, and one in ten of the short ones."""
    found, counts = observe(BY_PROMPT, seen(short_ones_late()))
    flat, flat_counts = observe(SLA(ttft_p99_ms=5000.0), seen(short_ones_late()))

    short, middle, long = found.by_prompt_tokens
    assert counts.attainment == pytest.approx(1 - 5 / 950)
    assert (short.name, middle.name, long.name) == ("1-2000", "2001-8000", "8001-")
    assert (short.requests, short.missed, short.attainment) == (50, 5, 0.9)
    assert (short.ttft_ms, short.target_ms) == (800.0, 500.0)
    assert (middle.requests, middle.attainment, middle.verdict) == (0, None, "Idle")
    assert (long.requests, long.missed, long.verdict) == (900, 0, "Meeting")
    assert [each.name for each in found.failing] == ["1-2000"]
    assert verdict(counts, 0.99, found.by_prompt_tokens) == "Violating"
    assert flat.by_prompt_tokens == ()
    assert verdict(flat_counts, 0.99) == "Meeting"


def test_a_class_below_its_objective_by_chance_is_neither_met_nor_violated() -> None:
    """One late of fifty says little."""
    found, counts = observe(BY_PROMPT, seen(short_ones_late(late=1)))

    assert found.failing == ()
    assert verdict(counts, 0.99, found.by_prompt_tokens) == "Unknown"


def test_who_got_no_first_token_missed_its_class_and_who_left_in_time_did_not() -> None:
    """Refusing does not make a class better; nor does a late first token that a client saw."""
    records = [
        served(1, 100, None, outcome="refused", tpot_ms=None),
        served(2, 100, None, outcome="shed", tpot_ms=None),
        served(3, 100, None, outcome="cancelled", tpot_ms=None),
        served(4, 100, 600.0, outcome="cancelled"),
        served(5, 100, 100.0, outcome="failed"),
    ]

    short = observe(BY_PROMPT, seen(records))[0].by_prompt_tokens[0]

    assert (short.requests, short.missed) == (4, 3)


def a_pod_of(late: int) -> MeasuredLatency:
    return observe(BY_PROMPT, seen(short_ones_late(late)))[0]


def test_pods_are_added_up_and_one_that_has_served_nothing_changes_nothing() -> None:
    """Two late of fifty on each of three pods are no chance any more."""
    unseen = MeasuredLatency(None, None, None, 0, None)

    pods = [a_pod_of(2), unseen, a_pod_of(2), a_pod_of(2)]
    found = combined(pods, NOTHING, 0.99).by_prompt_tokens

    assert (found[0].requests, found[0].missed, found[0].verdict) == (150, 6, "Violating")
    assert combined([unseen], NOTHING, 0.99).by_prompt_tokens == ()


def test_the_condition_says_which_prompts_are_late() -> None:
    """By declared bounds alone: a message with counts would be written at every round."""
    found, counts = observe(BY_PROMPT, seen(short_ones_late()))

    condition = sla_met(counts, found, TuningSpec(BY_PROMPT), None, is_seen=True)

    assert (condition.status, condition.reason) == ("False", "Violating")
    assert condition.message == (
        "too many requests miss the SLA: prompts of 1-2000 tokens their TTFT target"
    )


def a_report(late: int) -> ServiceReport:
    return ServiceReport("a/b", 5.0, a_pod_of(late), None, None, None, (), (), (), False)


def test_status_says_how_each_class_stands() -> None:
    classes = sla_status(a_report(5)).ttft_by_prompt_tokens

    assert classes is not None
    assert [each.model_dump(by_alias=True, exclude_none=True) for each in classes] == [
        {
            "promptTokens": "1-2000",
            "target": "500ms",
            "ttft": "800ms",
            "requests": 50,
            "attainment": "0.900",
            "verdict": "Violating",
        },
        {"promptTokens": "2001-8000", "target": "2000ms", "requests": 0, "verdict": "Idle"},
        {
            "promptTokens": "8001-",
            "target": "5000ms",
            "ttft": "1000ms",
            "requests": 900,
            "attainment": "1.000",
            "verdict": "Meeting",
        },
    ]


def test_a_class_that_begins_to_fail_is_news() -> None:
    """It is told at once, and numbers when they are due."""
    assert is_news(a_report(5), a_report(1), numbers_are_due=False)
    assert not is_news(a_report(6), a_report(5), numbers_are_due=False)


def held(sla: SLA) -> SlaValues:
    """What a sidecar that knows classes says that it holds."""
    return msgspec.convert(msgspec.to_builtins(sla), SlaValues)


def patched(spec: TuningSpec, limits: LimitsAnswer) -> dict[str, Any]:
    evidence = seen([served(1, 100, 90.0)], limits)
    body = patch_body(spec, limits, decide(spec, "pod", evidence, PodState(), 1.0))
    sent: dict[str, Any] = json.loads(msgspec.json.encode(body))
    return sent


def test_a_pod_that_knows_classes_is_told_them_though_it_has_the_hash() -> None:
    """The file that it started from says the hash, and holds what any sidecar can read."""
    spec = TuningSpec(BY_PROMPT, config_hash="one")

    body = patched(spec, a_limits(sla=held(SLA(ttft_p99_ms=5000.0))))

    assert body["sla"]["ttft_by_prompt_tokens"] == [
        {"up_to": 2000, "ttft_p99_ms": 500.0},
        {"up_to": 8000, "ttft_p99_ms": 2000.0},
        {"up_to": None, "ttft_p99_ms": 5000.0},
    ]


@pytest.mark.parametrize("is_acknowledged", [True, False], ids=["same hash", "another hash"])
def test_a_pod_of_before_gets_the_loosest_target_once(is_acknowledged: bool) -> None:
    """It would refuse the whole change for a field that it does not know."""
    spec = TuningSpec(BY_PROMPT, config_hash="one" if is_acknowledged else "two")
    before = a_limits(sla=SlaValues(ttft_p99_ms=5000.0))
    assert before.sla.ttft_by_prompt_tokens is UNSET

    body = patched(spec, before)

    assert ("sla" in body) is not is_acknowledged
    if "sla" in body:
        assert body["sla"]["ttft_p99_ms"] == 5000.0
        assert "ttft_by_prompt_tokens" not in body["sla"]


def test_a_pod_that_holds_what_is_declared_is_told_nothing() -> None:
    """Nor one whose service has no classes, when it knows of none."""
    for sla in (BY_PROMPT, SLA(ttft_p99_ms=5000.0)):
        assert "sla" not in patched(TuningSpec(sla, config_hash="one"), a_limits(sla=held(sla)))


def test_classes_that_are_gone_are_taken_from_the_pod() -> None:
    """Whoever changed the service while the pod kept the hash of before."""
    spec = TuningSpec(SLA(ttft_p99_ms=5000.0), config_hash="one")

    body = patched(spec, a_limits(sla=held(BY_PROMPT)))

    assert body["sla"]["ttft_by_prompt_tokens"] == []


def test_the_batch_lanes_own_classes_reach_the_pod_too() -> None:
    spec = TuningSpec(SLA(itl_p99_ms=80.0), batch_sla=BY_PROMPT, config_hash="one")
    limits = a_limits(
        sla=held(spec.sla),
        batch_sla=held(SLA(ttft_p99_ms=5000.0)),
        requested=LimitValues(16, 512, 200.0, batch_step_target_ms=None),
    )

    body = patched(spec, limits)

    assert len(body["batch_sla"]["ttft_by_prompt_tokens"]) == 3


def test_steps_of_the_batch_lane_stay_within_the_tightest_target() -> None:
    """A short prompt that arrives during a step waits until it ends."""
    lanes = TuningSpec(BY_PROMPT, batch_sla=SLA(itl_p99_ms=4000.0))

    assert starting_batch_target_ms(lanes) == 125.0


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_a_sample_counts_each_class_and_its_misses_exactly(seed: int) -> None:
    """However many miss, and though long prompts are the slowest in milliseconds."""
    chance = random.Random(seed)
    records = [
        served(
            n,
            chance.choice((100, 3000, 20_000)),
            chance.choice((90.0, 700.0, 3000.0, 6000.0)),
            output_tokens=chance.randint(1, 500),
        )
        for n in range(600)
    ]
    spec = TuningSpec(BY_PROMPT)

    rows = sampled_requests(records, SAMPLE, by_class(spec))

    assert len(rows) < 200
    for whole, sample in zip(
        observe(BY_PROMPT, seen(records))[0].by_prompt_tokens,
        observe(BY_PROMPT, seen([*rows]))[0].by_prompt_tokens,
        strict=True,
    ):
        assert (whole.requests, whole.missed) == (sample.requests, sample.missed)


def test_what_was_kept_for_loose_targets_is_not_kept_for_tight_ones() -> None:
    """At every length of prompt, whatever the classes are."""
    flat = SLA(ttft_p99_ms=500.0)
    finer = replace(BY_PROMPT, ttft_by_prompt_tokens=(PromptClass(1000, 200.0), *CLASSES))

    assert is_as_strict(flat, BY_PROMPT)
    assert not is_as_strict(BY_PROMPT, flat)
    assert is_as_strict(finer, BY_PROMPT)
    assert not is_as_strict(BY_PROMPT, finer)
    assert is_as_strict(BY_PROMPT, BY_PROMPT)


@pytest.mark.parametrize(
    ("target_ms", "obstacle"), [(100.0, "TTFTFloor"), (3000.0, "")], ids=["too tight", "wide"]
)
def test_a_class_that_no_pod_can_serve_in_time_is_an_obstacle(
    target_ms: float, obstacle: str
) -> None:
    """200 tokens take 430 ms at least; those of the other class, longer, have the time."""
    classes = (PromptClass(250, target_ms), PromptClass(None, 60_000.0))
    spec = TuningSpec(SLA(ttft_p99_ms=60_000.0, ttft_by_prompt_tokens=classes))
    records = [served(n, 200, 90.0) for n in range(30)]
    records += [served(30 + n, 1500, 90.0) for n in range(30)]

    decision = decide(spec, "pod", seen(records), PodState(), 1.0)

    assert decision.state.obstacle == obstacle
