"""A diagnosis names the cause that was put there, and the lever that moves it."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_cli.diagnose.diagnosis import Diagnosis, UndiagnosableError, diagnose
from paceline_cli.diagnose.latency import Span
from paceline_cli.diagnose.step_parts import split
from paceline_testing.telemetry import a_fit, a_limits, a_request, a_step, a_telemetry
from paceline_tuner import telemetry as answers

NOW = 1000.0
SERVED = tuple(
    a_request(
        i, NOW - 59 + i, queue_ms=20.0, ttft_ms=60.0, tpot_ms=50.0, arrived_at=NOW - 61.01 + i
    )
    for i in range(50)
)


def steps(wall_ms: float = 50.0, every_s: float = 0.05, **fields: Any) -> tuple[answers.Step, ...]:
    """A whole minute of them."""
    count = int(60 / every_s)
    return tuple(
        a_step(i, NOW - 60 + (i + 1) * every_s, wall_ms=wall_ms, **fields) for i in range(count)
    )


def diagnosis(**fields: Any) -> Diagnosis:
    return diagnose(a_telemetry(NOW, **({"steps": steps(), "requests": SERVED} | fields)))


def levers(found: Diagnosis) -> str:
    return " / ".join(f"{advice.lever}: {advice.text}" for advice in found.advice)


def span(found: Diagnosis, name: str) -> Span:
    return next(span for span in found.spans if span.name == name)


def cause(found: Diagnosis, name: str) -> str:
    part = span(found, name).largest
    return "" if part is None else part.name


@given(
    st.floats(0, 1e4),
    st.floats(0, 1e4),
    st.integers(0, 512),
    st.integers(0, 4096),
    st.integers(0, 10**7),
    st.tuples(*[st.floats(0, 1e4)] * 5),
)
def test_the_parts_of_a_step_are_its_whole_time(  # noqa: PLR0917 - drawn by hypothesis
    wall_ms: float,
    host_ms: float,
    decode: int,
    prefill: int,
    context: int,
    theta: tuple[float, float, float, float, float],
) -> None:
    """Whatever the model says: nothing is lost, nothing is negative."""
    step = a_step(
        0, 1.0, wall_ms=wall_ms, host_ms=host_ms, decode=decode, prefill=prefill, context=context
    )

    parts = split(step, a_fit(theta=theta))

    assert parts.total == pytest.approx(wall_ms, abs=1e-6)
    assert min(parts.host, parts.fixed, parts.decode, parts.kv, parts.prefill) >= 0


def test_the_queue_is_told_from_the_prefill() -> None:
    """A first token that is late because it waited is not one that is late because of work."""
    slow_queue = tuple(
        a_request(i, NOW - 50 + i, queue_ms=900.0, ttft_ms=1000.0) for i in range(40)
    )
    slow_prefill = tuple(
        a_request(i, NOW - 50 + i, queue_ms=100.0, ttft_ms=1000.0) for i in range(40)
    )

    assert cause(diagnosis(requests=slow_queue), "to the first token") == "queue"
    assert cause(diagnosis(requests=slow_prefill), "to the first token") == "prefill"


def test_a_gap_that_prompts_made_long_is_told_apart_from_decoding() -> None:
    """The same decodes, with and without a chunk of a prompt in every step."""
    alone = diagnosis()
    mixed = diagnosis(steps=steps(wall_ms=250.0, every_s=0.25, prefill=100, attention=5000))

    assert cause(alone, "between tokens") == "decode"
    assert cause(mixed, "between tokens") == "prompts of others"


def test_parts_add_up_to_what_was_measured() -> None:
    """A mean request's mean first token and mean time per token."""
    found = diagnosis(steps=steps(wall_ms=80.0, every_s=0.1, prefill=10, host_ms=3.0))

    assert span(found, "to the first token").mean_ms == pytest.approx(60.0)
    assert span(found, "between tokens").mean_ms == pytest.approx(50.0)


def test_a_client_that_reads_slowly_is_named() -> None:
    """The engine was done a second before the answer was taken."""
    late = tuple(
        a_request(
            i, NOW - 50 + i, arrived_at=NOW - 54 + i, ttft_ms=400.0, tpot_ms=60.0, output_tokens=41
        )
        for i in range(40)
    )

    found = diagnosis(requests=late)

    assert span(found, "after the last token").slow_ms == pytest.approx(1200.0)
    assert "the client or its network" in levers(found)
    assert "the client" not in levers(diagnosis())


@pytest.mark.parametrize(
    ("changed", "bound"),
    [
        ({"steps": steps(wall_ms=10.0, every_s=0.1, running=0)}, "Idle"),
        ({"steps": steps(host_ms=30.0)}, "Host"),
        ({"steps": steps(kv_used=4090)}, "KV"),
        ({"steps": steps(context=200_000)}, "Memory"),
        ({"steps": steps(prefill=500)}, "Compute"),
    ],
    ids=["idle", "host", "kv", "memory", "compute"],
)
def test_what_bounds_the_engine_is_named(changed: dict[str, Any], bound: str) -> None:
    """Each by the share of time that it takes, or by the blocks that are held."""
    assert diagnosis(**changed).time.bound == bound


def test_time_between_steps_counts_as_host_only_while_requests_run() -> None:
    """An engine that waits for work is idle, not slow."""
    busy = diagnosis(steps=steps(wall_ms=30.0, every_s=0.05))
    waiting = diagnosis(steps=steps(wall_ms=30.0, every_s=0.05, running=0))

    assert busy.time.between_ms == pytest.approx(24_000, rel=0.01)
    assert waiting.time.between_ms == 0
    assert waiting.time.idle_ms == pytest.approx(24_000, rel=0.01)


def test_a_draft_model_s_time_is_its_own_and_not_the_host_s() -> None:
    """It runs between two steps, and is part of what a token waits for."""
    found = diagnosis(steps=steps(wall_ms=30.0, every_s=0.05, draft_ms=15.0))

    assert found.time.parts.draft == pytest.approx(18_000)
    assert found.time.between_ms == pytest.approx(6_000, rel=0.01)
    assert found.time.bound != "Host"


def test_more_load_than_fits_asks_for_replicas_with_their_number() -> None:
    """Ten requests a second where some two fit."""
    many = tuple(
        a_request(i, NOW - 59.9 + i / 10, arrived_at=NOW - 61 + i / 10) for i in range(599)
    )
    limits = a_limits(sla=answers.SlaValues(itl_p99_ms=120.0))

    found = diagnosis(requests=many, limits=limits)

    assert found.capacity_rps is not None
    assert found.arrival_rps > found.capacity_rps
    pods = -(-found.arrival_rps // (0.8 * found.capacity_rps))
    assert f"{pods:.0f} pods" in levers(found)


def test_a_queue_before_a_small_batch_asks_for_a_larger_one() -> None:
    """16 run, others wait, and a step with more of them would still be within the target."""
    crowded = steps(decode=16, running=16, waiting=5, context=4000)

    found = diagnosis(steps=crowded, limits=a_limits(sla=answers.SlaValues(itl_p99_ms=400.0)))

    assert "tuning.batchSize.max" in levers(found)
    assert "100% of the steps requests waited while 16 ran" in levers(found)


def test_preempted_work_is_told_as_such() -> None:
    """What was computed twice is not charged to prompts."""
    torn = tuple(
        a_step(
            i, NOW - 60 + (i + 1) * 0.25, wall_ms=250.0, prefill=100, preemptions=int(i % 40 == 0)
        )
        for i in range(240)
    )

    found = diagnosis(steps=torn)

    assert found.time.num_preemptions == 6
    assert found.time.recomputed_share == pytest.approx(1 - 50 * 200 / 24_000)
    assert "pre-emptions computed 58% of the prompt tokens again" in levers(found)


def test_a_floor_above_the_target_is_not_answered_with_replicas() -> None:
    """Nothing but a faster step helps."""
    found = diagnosis(
        steps=steps(decode=1, running=1, context=200),
        limits=a_limits(sla=answers.SlaValues(itl_p99_ms=10.0)),
    )

    assert "neither limits nor replicas reach it" in levers(found)


@pytest.mark.parametrize(
    ("next_bin", "told"),
    [(1.3, "twice as many would take +42% a step"), (0.9, "twice as many would take no longer")],
    ids=["longer", "shorter"],
)
def test_twice_the_sequences_never_shorten_a_step(next_bin: float, told: str) -> None:
    """The model corrects each bin by itself, and may predict less for a bin of more tokens."""
    theta = (40.0, 0.5, 0.0, 0.0, 0.0)
    fit = a_fit(theta=theta, bin_tokens=8, correction=(1.0, next_bin, next_bin))

    assert told in levers(diagnosis(model=fit))


def test_without_a_trusted_model_no_capacity_is_claimed() -> None:
    """And the reader is told why."""
    found = diagnosis(model=a_fit(valid=False, reason="holdout error 22 %"))

    assert found.capacity_rps is None
    assert "holdout error 22 %" in found.note


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"steps": ()}, "no step ran"),
        ({"limits": None}, "limits"),
        ({"model": a_fit(theta=(float("nan"),) * 5)}, "numbers that cannot be"),
    ],
    ids=["nothing ran", "not ready", "not a number"],
)
def test_what_cannot_be_judged_says_why(changed: dict[str, Any], why: str) -> None:
    """No figure is made of nothing."""
    with pytest.raises(UndiagnosableError, match=why):
        diagnosis(**changed)


def test_the_share_of_bandwidth_and_arithmetic_is_that_of_a_known_device() -> None:
    """Eight decodes in 50 ms read the weights once, and 2,000 tokens of KV, on an H100."""
    info = answers.EngineInfo(
        num_parameters=8 * 10**9,
        weight_bytes=16 * 10**9,
        kv_bytes_per_token=10**5,
        device="cuda:NVIDIA H100 80GB HBM3",
        dtype="bfloat16",
    )

    found = diagnosis(info=info).achieved

    assert found is not None
    assert found.gb_per_s == pytest.approx((16 + 1e-4 * 2008) / 0.05)
    assert found.bandwidth_share == pytest.approx(found.gb_per_s / 3350)
    attention = 4 * 3 * 10**5 / 4 * 2000
    assert found.tflops == pytest.approx((2 * 8e9 * 8 + attention) / 0.05 / 1e12)
    assert found.arithmetic_share == pytest.approx(found.tflops / 989)


def test_ranks_share_the_work_and_their_bandwidths_add_up() -> None:
    """The sizes are those of the whole model."""
    info = answers.EngineInfo(
        num_parameters=8 * 10**9, weight_bytes=16 * 10**9, device="cuda:NVIDIA H100"
    )
    two = msgspec.structs.replace(info, features=("tensor_parallel_size=2",))
    one_share, two_shares = diagnosis(info=info).achieved, diagnosis(info=two).achieved

    assert one_share is not None
    assert two_shares is not None
    assert one_share.bandwidth_share is not None
    assert two_shares.bandwidth_share == pytest.approx(one_share.bandwidth_share / 2)


def test_of_a_device_without_a_datasheet_no_share_is_guessed() -> None:
    """A CPU's bandwidth is nowhere to be looked up; of a model of unknown size nothing is said."""
    found = diagnosis(
        info=answers.EngineInfo(num_parameters=10**6, weight_bytes=4 * 10**6, device="cpu")
    ).achieved

    assert found is not None
    assert (found.bandwidth_share, found.arithmetic_share) == (None, None)
    assert found.gb_per_s > 0
    assert diagnosis(info=answers.EngineInfo(device="cpu")).achieved is None


def test_decode_turns_where_the_fitted_model_says() -> None:
    """30 ms for the weights, 2 ms for each token, 0.5 ms for 250 tokens of context."""
    assert diagnosis().turning_batch == pytest.approx(30 / (2 - 2 * 0.25))
    assert diagnosis(model=a_fit(valid=False)).turning_batch is None


def test_tokens_are_those_of_the_decodes_and_the_first_ones() -> None:
    """1,200 steps of eight decodes in a minute, and fifty requests; drafts count by acceptance."""
    load = answers.Load(8, 0, 0, output_tokens=300, accepted_tokens=100)

    assert diagnosis().throughput.output_tps == 161.0
    assert diagnosis().throughput.finished_rps == 0.833
    assert diagnosis(load=load).throughput.output_tps == 241.0
    assert diagnosis().cost is None


def test_a_price_gives_a_cost() -> None:
    """161 tokens a second at 5.796 an hour."""
    found = diagnose(a_telemetry(NOW, steps=steps(), requests=SERVED), price_per_hour=5.796).cost

    assert found is not None
    assert found.per_million_output == pytest.approx(10.0)
