"""A plan follows its inputs: memory, targets, traffic, and how far they are trusted."""

import math
from dataclasses import replace

import pytest

from paceline_cli.plan.assumed_times import assumed_times
from paceline_cli.plan.kv_memory import KvMemory, occupancy_line
from paceline_cli.plan.outlook import Outlook, ServicePlan
from paceline_cli.plan.planner import Inputs, plan
from paceline_cli.traffic.traces import TracedRequest
from paceline_engine.hardware.devices import GPUS, Device
from paceline_engine.hardware.model_size import ModelSize, Precision
from paceline_tuner.service_spec import SLA, PromptClass, TuningSpec

EIGHT_B = ModelSize(8 * 10**9, 16 * 10**9, 131_072, Precision(2), max_len=8192)
H100 = GPUS["h100"]
LAST = PromptClass(None, 3000.0)


def steady(rps: float = 4.0, *, prompt: int = 800, output: int = 100) -> tuple[TracedRequest, ...]:
    """Two minutes, lengths around these."""
    return tuple(
        TracedRequest(i / rps, prompt // 2 + prompt * (i % 11) // 10, output)
        for i in range(int(120 * rps))
    )


def inputs(
    *,
    sla: SLA | None = None,
    device: Device = H100,
    size: ModelSize = EIGHT_B,
    requests: tuple[TracedRequest, ...] | None = None,
    factor: float = 1.5,
) -> Inputs:
    return Inputs(
        spec=TuningSpec(sla=sla or SLA(ttft_p99_ms=1000.0, itl_p99_ms=50.0)),
        max_batch_size=256,
        max_model_len=None,
        memory=KvMemory(device, size, 0.9, 8192),
        model=assumed_times(device, size),
        factor=factor,
        requests=requests or steady(),
    )


def outlook(found: ServicePlan) -> Outlook:
    assert found.outlook is not None
    return found.outlook


def test_the_same_inputs_give_the_same_plan() -> None:
    """A plan is compared with the one before a change."""
    assert plan(inputs()) == plan(inputs())


def test_an_easy_service_is_achievable_with_error_bars_around_each_number() -> None:
    """The bars hold the prediction."""
    found = plan(inputs())

    assert not found.obstacle
    bars = [outlook(found).capacity_rps, outlook(found).replicas]
    for bar in bars + [latency.predicted_ms for latency in outlook(found).latencies]:
        assert bar.low <= bar.value <= bar.high
    assert outlook(found).capacity_rps.low < outlook(found).capacity_rps.high


def test_more_load_needs_more_replicas() -> None:
    """The peak is divided by what a pod can do."""
    few = outlook(plan(inputs(requests=steady(8.0))))
    many = outlook(plan(inputs(requests=steady(20.0))))

    assert many.capacity_rps.value == pytest.approx(few.capacity_rps.value, rel=0.05)
    assert many.replicas.value >= 2 * few.replicas.value


def test_a_guess_has_wider_bars_than_a_known_gpu() -> None:
    """Width is honesty here."""
    known = outlook(plan(inputs(factor=1.5))).capacity_rps
    guess = outlook(plan(inputs(factor=3.0))).capacity_rps

    assert guess.high / guess.low > 1.5 * known.high / known.low


def test_bursts_need_more_replicas_than_their_rate() -> None:
    """The simulation sees what a mean does not."""
    smooth = steady(6.0)
    bursts = tuple(replace(r, at_s=r.at_s // 30 * 30 + 0.001 * (r.at_s % 30)) for r in smooth)

    calm = outlook(plan(inputs(requests=smooth)))
    found = outlook(plan(inputs(requests=bursts)))

    assert found.replicas.value > found.rate_replicas
    assert found.replicas.value > calm.replicas.value


def test_a_tight_pace_bounds_the_batch_and_a_loose_one_leaves_it_to_memory() -> None:
    """What binds is named."""
    tight = outlook(plan(inputs(sla=SLA(itl_p99_ms=20.0)))).limits
    small = replace(H100, memory_bytes=22 << 30)
    loose = outlook(plan(inputs(sla=SLA(itl_p99_ms=5000.0), device=small))).limits

    assert tight.batch_bound == "SLA:itl"
    assert loose.batch_bound == "KV"
    assert loose.batch_size == loose.kv_batch_size


@pytest.mark.parametrize(
    ("sla", "reason"),
    [
        (SLA(itl_p99_ms=5.0), "TPOTFloor"),
        (SLA(tpot_p99_ms=5.0), "TPOTFloor"),
        (SLA(ttft_p99_ms=10.0), "TTFTFloor"),
        (SLA(e2e_p99_ms=500.0), "E2EFloor"),
        (SLA(3000.0, ttft_by_prompt_tokens=(PromptClass(600, 10.0), LAST)), "TTFTFloor"),
        (SLA(itl_p99_ms=10.6), "TPOTFloor"),  # the mean step keeps it, the slowest of 100 does not
    ],
    ids=["itl", "tpot", "ttft", "answer", "short prompts", "tail"],
)
def test_what_no_replica_helps_is_named_in_the_tuners_words(sla: SLA, reason: str) -> None:
    """An 8B model's weights alone take 9.5 ms to read."""
    assert plan(inputs(sla=sla)).obstacle == reason


def test_weights_that_do_not_fit_leave_nothing_to_predict() -> None:
    """With the arithmetic that shows it."""
    found = plan(inputs(device=GPUS["t4"]))

    assert (found.obstacle, found.outlook) == ("DoesNotFit", None)
    assert found.memory.kv_bytes < 0
    assert found.memory.arithmetic()[3].result.startswith("-")


def test_requests_longer_than_a_sequence_are_left_out_and_counted() -> None:
    """The engine refuses them."""
    found = plan(inputs(requests=(*steady(), TracedRequest(121.0, 9000, 10))))

    assert found.num_left_out == 1


def test_a_trace_that_never_fits_is_refused() -> None:
    """No number of replicas makes a sequence longer."""
    requests = tuple(TracedRequest(float(i), 9000, 10) for i in range(5))

    assert plan(inputs(requests=requests)).obstacle == "KVBound"


def test_the_memory_of_a_gpu_is_divided_line_by_line() -> None:
    """Each figure can be done again by hand."""
    memory = KvMemory(H100, replace(EIGHT_B, step_bytes_per_token=1 << 17), 0.9, 8192)
    by_hand = int(79 * 2**30 * 0.9) - 16 * 10**9 - 2**30 - 8192 * 2**17

    assert memory.kv_bytes == by_hand
    assert memory.tokens == by_hand // (131_072 * 16) * 16
    assert [line.result for line in memory.arithmetic()[:3]] == [
        "71.10 GiB", "14.90 GiB", "2.00 GiB",
    ]  # fmt: skip


def test_the_largest_batch_by_memory_is_shown_to_fit() -> None:
    """And one more would not."""
    found = plan(inputs())
    demand, batch = outlook(found).demand, outlook(found).limits.kv_batch_size
    room = 0.95 * found.memory.tokens

    def wanted(n: int) -> float:
        return n * demand.held + 2.33 * demand.kv_deviation * math.sqrt(n)

    assert wanted(batch) <= room < wanted(batch + 1)
    assert f"{wanted(batch):,.0f}" in occupancy_line(demand, batch=batch, tokens=100).result


def test_each_class_of_prompts_is_planned_and_shown() -> None:
    """With its own target; a class that no prompt is of needs nothing."""
    classes = (PromptClass(600, 400.0), PromptClass(5000, 1500.0), LAST)
    sla = SLA(3000.0, itl_p99_ms=50.0, ttft_by_prompt_tokens=classes)

    found = outlook(plan(inputs(sla=sla))).latencies

    assert [(each.name, each.target_ms) for each in found[:3]] == [
        ("TTFT 1-600", 400.0),
        ("TTFT 601-5000", 1500.0),
        ("TTFT 5001-", 3000.0),
    ]
    assert all(each.is_met for each in found[:3])
    assert found[2].predicted_ms.value == 0.0 < found[0].predicted_ms.value


def test_an_end_to_end_target_is_planned_by_its_objective() -> None:
    """A tighter one takes a smaller batch; the quantile that is shown is the promised one."""
    loose = outlook(plan(inputs(sla=SLA(e2e_p99_ms=20_000.0))))
    tight = outlook(plan(inputs(sla=SLA(e2e_p99_ms=2500.0, objective=0.95))))

    assert tight.limits.batch_size < loose.limits.batch_size
    assert (tight.limits.batch_bound, tight.quantile) == ("SLA:e2e", 0.95)
    assert [latency.name for latency in tight.latencies] == ["TTFT", "TPOT", "ITL", "E2E"]
    assert tight.latencies[-1].is_met
