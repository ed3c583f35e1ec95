"""What a warm start keeps, for whom, for how long, and how it survives being written."""

import json
from dataclasses import replace

import pytest

from paceline_testing.telemetry import a_fit, a_limits, a_request, a_step, a_telemetry
from paceline_tuner.audit import Audit
from paceline_tuner.decide import decide
from paceline_tuner.pod_state import PodState
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.telemetry import EngineInfo
from paceline_tuner.warm_start import AVOIDED_S, KEPT_S, MAX_ENTRIES, WarmStart
from paceline_tuner.warm_start_entry import EngineKey, WarmStartEntry, is_as_strict
from paceline_tuner.warm_start_json import decode, encode
from paceline_tuner.warm_start_store import learned_entry
from paceline_tuner.window import Evidence, Window

NOW = 1e9
DAY = 86_400.0
INFO = EngineInfo(
    name="tiny",
    weight_bytes=500,
    device="cpu",
    dtype="float32",
    engine_version="1",
    features=("threads=4",),
)
SPEC = TuningSpec(sla=SLA(itl_p99_ms=400.0), config_hash="one")


def a_key(**fields: object) -> EngineKey:
    key = EngineKey.of(INFO)
    assert key is not None
    return replace(key, **fields)  # type: ignore[arg-type]  # a builder's free fields


def an_entry(**fields: object) -> WarmStartEntry:
    base = WarmStartEntry(
        key=a_key(),
        sla=SLA(itl_p99_ms=300.0),
        theta=(30.0, 2.0, 0.5, 2.0, 50.0),
        knee=256,
        correction=(1.0, 0.97),
        batch_size=20,
        token_budget=400,
        step_target_ms=280.0,
        at=NOW,
    )
    return replace(base, **fields)  # type: ignore[arg-type]  # as a_key


def an_evidence(**fields: object) -> Evidence:
    """A minute of 40 requests and quick steps under limits that hold."""
    window = Window()
    base: dict[str, object] = {
        "info": INFO,
        "steps": tuple(a_step(seq, 940 + seq * 0.1) for seq in range(600)),
        "requests": tuple(a_request(seq, 945 + seq) for seq in range(1, 55)),
    }
    window.add(a_telemetry(1000.0, **(base | fields)))
    evidence = window.evidence(60.0)
    assert evidence is not None
    return evidence


def a_warm_start(
    spec: TuningSpec = SPEC, *, is_proven: bool = True, **fields: object
) -> WarmStartEntry | None:
    """Remember a decision that found the limits right."""
    evidence = an_evidence(**fields)
    state = PodState(instance="a", sla=spec.sla, audit=Audit(since=900.0))
    decision = decide(spec, "pod", evidence, state, NOW)
    settled = replace(decision, chosen=decision.current, is_proven=is_proven)
    return learned_entry(spec, evidence, settled, NOW)


def test_limits_that_kept_the_sla_under_a_trusted_model_are_remembered() -> None:
    """Together with the model, the SLA and the time."""
    entry = a_warm_start()

    assert entry is not None
    assert (entry.batch_size, entry.token_budget, entry.step_target_ms) == (16, 512, 200.0)
    assert (entry.theta, entry.knee) == (a_fit().theta, 256)
    assert (entry.sla, entry.at, entry.key) == (SPEC.sla, NOW, a_key())


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        (SPEC, {"model": a_fit(valid=False, reason="q_r")}),
        (SPEC, {"model": a_fit(fast=1.4)}),
        (SPEC, {"limits": a_limits(lease_lost=True)}),
        (SPEC, {"info": EngineInfo(device="cpu")}),
        (SPEC, {"is_proven": False}),
        (replace(SPEC, mode="Observe"), {}),
        (replace(SPEC, mode="Fixed"), {}),
        (replace(SPEC, paused=True), {}),
    ],
    ids=[
        "untrusted",
        "hot neighbour",
        "lost lease",
        "unknown engine",
        "young limits",
        "observed",
        "fixed",
        "paused",
    ],
)
def test_what_is_not_ours_or_not_proven_is_not_remembered(
    spec: TuningSpec, fields: dict[str, object]
) -> None:
    """A new pod must not inherit an accident."""
    assert a_warm_start(spec, **fields) is None  # type: ignore[arg-type]  # as a_key


@pytest.mark.parametrize("name", ["name", "device", "engine_version"])
def test_a_pod_that_does_not_say_what_it_is_has_no_key(name: str) -> None:
    """An older sidecar tells neither version nor features."""
    info = EngineInfo(**({"name": "m", "device": "cpu", "engine_version": "1"} | {name: ""}))  # type: ignore[arg-type]  # as a_key

    assert EngineKey.of(info) is None


@pytest.mark.parametrize(
    "other",
    [
        {"model": "large"},
        {"revision": "abc"},
        {"weight_bytes": 501},
        {"dtype": "bfloat16"},
        {"engine_version": "2"},
        {"device": "cuda:NVIDIA H200"},
        {"features": ("threads=8",)},
    ],
    ids=str,
)
def test_nothing_is_recalled_under_another_key(other: dict[str, object]) -> None:
    """Each part of the key changes how long a step takes."""
    warm_start = WarmStart().add(an_entry())

    assert warm_start.starting_point(a_key(), an_entry().sla, NOW) is not None
    assert warm_start.starting_point(a_key(**other), an_entry().sla, NOW) is None


@pytest.mark.parametrize(
    ("kept", "declared", "holds"),
    [
        (SLA(itl_p99_ms=300.0), SLA(itl_p99_ms=300.0), True),
        (SLA(itl_p99_ms=300.0), SLA(itl_p99_ms=400.0), True),
        (SLA(itl_p99_ms=300.0), SLA(itl_p99_ms=200.0), False),
        (SLA(itl_p99_ms=300.0), SLA(tpot_p99_ms=300.0), False),
        (SLA(itl_p99_ms=300.0, ttft_p99_ms=900.0), SLA(itl_p99_ms=300.0), True),
        (SLA(itl_p99_ms=300.0), SLA(itl_p99_ms=300.0, ttft_p99_ms=900.0), False),
        (SLA(itl_p99_ms=300.0), SLA(itl_p99_ms=300.0, objective=0.999), False),
        (SLA(), SLA(itl_p99_ms=300.0), False),
    ],
)
def test_limits_are_recalled_for_slas_that_they_keep(
    kept: SLA, declared: SLA, *, holds: bool
) -> None:
    """The step model is starting_point in any case: it depends on no promise."""
    starting_point = WarmStart().add(an_entry(sla=kept)).starting_point(a_key(), declared, NOW)

    assert is_as_strict(kept, declared) == holds
    assert starting_point is not None
    assert (starting_point.limits is not None) == holds


def test_limits_of_the_same_sla_go_before_those_of_a_tighter_one() -> None:
    """The tighter ones hold too, but serve fewer; among tighter ones the largest is taken."""
    tight = an_entry(sla=SLA(itl_p99_ms=100.0), batch_size=4, at=NOW + 2)
    middle = an_entry(sla=SLA(itl_p99_ms=200.0), batch_size=10, at=NOW + 1)
    same = an_entry(sla=SLA(itl_p99_ms=300.0), batch_size=20)
    warm_start = WarmStart().add(tight).add(middle).add(same)

    exact = warm_start.starting_point(a_key(), SLA(itl_p99_ms=300.0), NOW)
    near = warm_start.starting_point(a_key(), SLA(itl_p99_ms=250.0), NOW)

    assert exact is not None
    assert near is not None
    assert (exact.limits, near.limits) == (same, middle)
    assert exact.coefficients == tight  # the newest model


def test_thirty_days_later_it_is_forgotten() -> None:
    """Drivers and neighbours change; what is used is renewed each day."""
    warm_start = WarmStart().add(an_entry())

    assert warm_start.starting_point(a_key(), an_entry().sla, NOW + KEPT_S - 1) is not None
    assert warm_start.starting_point(a_key(), an_entry().sla, NOW + KEPT_S) is None
    later = warm_start.add(an_entry(key=a_key(model="other"), at=NOW + KEPT_S))
    assert [entry.key.model for entry in later.entries] == ["other"]


def test_what_says_the_same_is_no_news_until_a_day_has_passed() -> None:
    """A fit wavers; the warm_start must not be rewritten for it."""
    warm_start = WarmStart().add(an_entry())

    same = warm_start.add(an_entry(at=NOW + 60, theta=(30.5, 2.02, 0.4, 2.1, 52.0)))
    renewed = warm_start.add(an_entry(at=NOW + DAY))
    other = warm_start.add(an_entry(at=NOW + 60, batch_size=15))

    assert same is warm_start
    assert renewed.entries[0].at == NOW + DAY
    assert [entry.batch_size for entry in other.entries] == [15]


def test_a_quiet_window_does_not_outweigh_what_counts_have_certified() -> None:
    """Light load proves small limits; certified ones stand for a day, then the newer is taken."""
    warm_start = WarmStart().add(an_entry(is_certified=True))

    assert warm_start.add(an_entry(at=NOW + 60, batch_size=6)) is warm_start
    assert warm_start.add(an_entry(at=NOW + DAY, batch_size=6)).entries[0].batch_size == 6
    certified = warm_start.add(an_entry(at=NOW + 60, batch_size=6, is_certified=True))
    assert certified.entries[0].batch_size == 6


def test_limits_that_failed_are_avoided_for_a_day() -> None:
    """The model behind them is not."""
    warm_start = WarmStart().add(an_entry()).avoid(an_entry(), NOW)

    failed = warm_start.starting_point(a_key(), an_entry().sla, NOW + AVOIDED_S - 1)
    after = warm_start.starting_point(a_key(), an_entry().sla, NOW + AVOIDED_S)

    assert failed is not None
    assert failed.limits is None
    assert after is not None
    assert after.limits is not None


def test_only_proof_or_smaller_limits_clear_a_failure() -> None:
    """Otherwise the pod that failed would be followed by one that fails."""
    warm_start = WarmStart().add(an_entry()).avoid(an_entry(), NOW)

    def limits_after(entry: WarmStartEntry) -> WarmStartEntry | None:
        starting_point = warm_start.add(entry).starting_point(a_key(), entry.sla, NOW + 60)
        assert starting_point is not None
        return starting_point.limits

    assert limits_after(an_entry(at=NOW + 60)) is None
    assert limits_after(an_entry(at=NOW + 60, batch_size=25)) is None
    assert limits_after(an_entry(at=NOW + 60, batch_size=12)) is not None
    assert limits_after(an_entry(at=NOW + 60, is_certified=True)) is not None


def test_limits_found_since_are_not_blamed() -> None:
    """A pod may fail with what has been corrected in the meantime."""
    warm_start = WarmStart().add(an_entry(batch_size=10))

    assert warm_start.avoid(an_entry(batch_size=20), NOW) is warm_start


def test_the_oldest_make_room() -> None:
    """Sixty-four, so that what holds the warm_start need not grow."""
    warm_start = WarmStart()
    for number in range(MAX_ENTRIES + 5):
        warm_start = warm_start.add(an_entry(key=a_key(model=f"m{number}"), at=NOW + number))

    assert len(warm_start.entries) == MAX_ENTRIES
    assert warm_start.entries[0].key.model == "m5"


def test_two_books_make_one_with_the_newer_of_each() -> None:
    """A warning in either holds, unless proof came after it; what is dated ahead is left out."""
    mine = WarmStart().add(an_entry(batch_size=20)).add(an_entry(key=a_key(model="mine")))
    theirs = (
        WarmStart((an_entry(key=a_key(model="future"), at=NOW + 2 * DAY),))
        .add(an_entry(batch_size=10, at=NOW + 60, is_certified=True))
        .add(an_entry(key=a_key(model="mine"), at=NOW - 60))
        .avoid(an_entry(key=a_key(model="mine")), NOW)
    )

    merged = mine.merged(theirs, NOW + 60)
    by_model = {entry.key.model: entry for entry in merged.entries}

    assert by_model.keys() == {"tiny", "mine"}
    assert by_model["tiny"].batch_size == 10
    assert (by_model["mine"].at, by_model["mine"].avoid_until) == (NOW, NOW + AVOIDED_S)
    assert merged.merged(theirs, NOW + 60) == merged


def test_a_book_survives_its_writing() -> None:
    """Every field, exactly, but for the digits of corrections."""
    warm_start = WarmStart().add(an_entry(correction=(1.0, 0.97123))).add(
        an_entry(sla=SLA(ttft_p99_ms=500.0), step_target_ms=None, is_certified=True)
    )  # fmt: skip

    read, problems = decode(encode(warm_start))

    assert problems == []
    assert read.entries[0].correction == (1.0, 0.9712)
    assert read.entries[1] == warm_start.entries[1]


@pytest.mark.parametrize(
    "broken",
    [
        {"theta": [1, 1, 1, 1]},
        {"theta": [0, 0, 1, 1, 1]},
        {"theta": [-1, 1, 1, 1, 1]},
        {"theta": None},
        {"batch_size": 0},
        {"step_target_ms": -5.0},
        {"key": "tiny"},
        {"at": "yesterday"},
    ],
    ids=str,
)
def test_a_broken_entry_is_dropped_and_named(broken: dict[str, object]) -> None:
    """The others are worth no less."""
    document = json.loads(encode(WarmStart().add(an_entry())))
    document["entries"].insert(0, document["entries"][0] | broken)

    warm_start, problems = decode(json.dumps(document))

    assert warm_start == WarmStart().add(an_entry())
    assert len(problems) == 1
    assert "entry 0" in problems[0]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"version": 1}', '{"version": 9, "entries": []}', "[" * 100_000],
    ids=["empty", "cut", "list", "null", "no entries", "newer", "deep"],
)
def test_what_is_no_book_is_an_empty_one(text: str) -> None:
    """A person's slip in a ConfigMap must not stop the tuner."""
    warm_start, problems = decode(text)

    assert warm_start == WarmStart()
    assert len(problems) == 1


def test_a_book_is_cut_to_what_a_config_map_holds() -> None:
    """The newest entries stay."""
    long = tuple(1.0 + i * 1e-4 for i in range(4000))
    warm_start = WarmStart()
    for number in range(MAX_ENTRIES):
        warm_start = warm_start.add(
            an_entry(key=a_key(model=f"m{number}"), at=NOW + number, correction=long)
        )

    text = encode(warm_start)
    read, _ = decode(text)

    assert len(text) < 600_000
    assert 1 < len(read.entries) < MAX_ENTRIES
    assert read.entries[-1].key.model == f"m{MAX_ENTRIES - 1}"
