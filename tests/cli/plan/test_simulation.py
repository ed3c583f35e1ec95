"""The plan's pods serve requests as an engine would, on a clock that only steps move."""

import pytest

from paceline_cli.plan.kv_memory import KvMemory
from paceline_cli.plan.simulation import SimulatedLatencies, SimulatedPod, joined, simulated_pod
from paceline_cli.traffic.traces import TracedRequest
from paceline_engine.hardware.devices import BLOCK_TOKENS, GPUS
from paceline_engine.hardware.model_size import ModelSize, Precision
from paceline_tuner.service_spec import SLA, PromptClass
from paceline_tuner.telemetry import ModelFit
from paceline_tuner.tuned_limits import TunedLimits

KV_BYTES = 1 << 20
UNDECLARED = SLA()


def a_pod(
    *,
    batch: int = 4,
    budget: int = 100,
    target_ms: float | None = None,
    blocks: int = 600,
    q_r: float = 1.0,
    sla: SLA = UNDECLARED,
) -> SimulatedPod:
    """A step takes 10 ms and 0.1 ms per token, without noise where `q_r` is 1."""
    fit = ModelFit(
        theta=(10.0, 0.1, 0.0, 0.0, 0.0), prior=(0.0,) * 5, knee=256, correction=(),
        fast=1.0, q_r=q_r, samples=0, mape=0.0, valid=True,
    )  # fmt: skip
    gpu = GPUS["h100"]
    # All that the GPU has beside so many blocks are weights and the reserve.
    usable = KvMemory(gpu, ModelSize(0, 0, KV_BYTES, Precision(2)), 0.9, 2048).kv_bytes
    weights = usable - blocks * BLOCK_TOKENS * KV_BYTES
    memory = KvMemory(gpu, ModelSize(1, weights, KV_BYTES, Precision(2)), 0.9, 2048)
    assert memory.num_blocks == blocks
    limits = TunedLimits(batch, budget, target_ms)
    return simulated_pod(fit, limits, memory, max_model_len=4096, sla=sla)


def serve(pod: SimulatedPod, *rows: tuple[float, int, int]) -> SimulatedLatencies:
    return pod.serve([TracedRequest(*row) for row in rows])


def test_a_lone_request_takes_its_prompt_and_its_tokens() -> None:
    """Prefill of 100 tokens in one step, then two steps of one token each."""
    served = serve(a_pod(), (1.0, 100, 3))

    assert served.ttft_ms == pytest.approx([20.0])
    assert served.tpot_ms == pytest.approx([10.1])
    assert served.gap_counts.sum() == 2
    assert served.itl(1.0) == pytest.approx(10.1, rel=0.02)


def test_a_prompt_longer_than_the_budget_takes_more_steps() -> None:
    """250 tokens at 100 a step: 20, 20 and 15 ms."""
    assert serve(a_pod(), (0.0, 250, 1)).ttft_ms == pytest.approx([55.0])


def test_a_prompt_beside_a_decode_stretches_its_gaps_and_the_target_bounds_it() -> None:
    """What a token budget or a step target is for."""
    rows = ((0.0, 10, 50), (0.05, 400, 1))

    free = serve(a_pod(budget=1000), *rows)
    paced = serve(a_pod(budget=1000, target_ms=18.0), *rows)

    assert free.itl(1.0) == pytest.approx(10 + 0.1 * 401, rel=0.02)
    assert paced.itl(1.0) <= 18.0
    assert paced.ttft_ms[1] > free.ttft_ms[1]


def test_a_full_batch_lets_the_next_request_wait() -> None:
    """And memory does the same."""
    rows = ((0.0, 40, 11), (0.0, 40, 1))

    together = serve(a_pod(batch=2), *rows).ttft_ms[1]

    assert serve(a_pod(batch=1), *rows).ttft_ms[1] > together + 100
    assert serve(a_pod(batch=2, blocks=4), *rows).ttft_ms[1] > together + 100


def test_each_mean_belongs_to_the_first_token_beside_it() -> None:
    """The long answer ends last though it began first; both latencies are of one request."""
    served = serve(a_pod(), (0.0, 10, 30), (0.02, 90, 2))

    assert served.ttft_ms[0] == pytest.approx(11.0)
    assert served.tpot_ms[0] == pytest.approx(10.1, rel=0.2)
    assert served.tpot_ms[1] == pytest.approx(10.2)


def test_alone_nobody_waits_for_another() -> None:
    """What no number of replicas would better."""
    requests = [TracedRequest(0.0, 100, 3), TracedRequest(0.0, 100, 3)]

    alone = a_pod().serve_alone(requests)

    assert alone.ttft_ms == pytest.approx([20.0, 20.0])
    assert alone.tpot_ms == pytest.approx([10.1, 10.1])


def test_attainment_is_the_lesser_of_requests_and_gaps() -> None:
    """As the tuner counts."""
    served = serve(a_pod(), (0.0, 100, 3), (10.0, 300, 3))

    assert served.attainment(SLA(ttft_p99_ms=30.0)) == 0.5
    assert served.attainment(SLA(ttft_p99_ms=100.0, itl_p99_ms=5.0)) == 0.0
    assert served.attainment(SLA()) == 1.0


def test_pods_are_counted_together() -> None:
    """A p99 of two pods is that of all their requests."""
    quick, slow = (
        serve(a_pod(), *[(float(i), 10, 2) for i in range(99)]),
        serve(a_pod(), (0, 90, 2)),
    )

    both = joined([quick, slow])

    assert len(both.ttft_ms) == 100
    assert both.gap_counts.sum() == 100
    assert both.ttft(0.99) == pytest.approx(11.0)
    assert both.ttft(1.0) == pytest.approx(19.0)


def test_answers_of_one_token_have_no_pace() -> None:
    """And a share of nothing is nothing."""
    served = serve(a_pod(), (0.0, 10, 1))

    assert (served.tpot(0.99), served.itl(0.99)) == (0.0, 0.0)
    assert served.attainment(SLA(tpot_p99_ms=1.0, itl_p99_ms=1.0)) == 1.0


def test_with_targets_by_prompt_length_who_is_due_first_is_served_first() -> None:
    """A short prompt passes long ones that wait, and each is judged by its own target."""
    classes = (PromptClass(50, 100.0), PromptClass(None, 9000.0))
    sla = SLA(9000.0, ttft_by_prompt_tokens=classes)
    rows = [(0.0, 1000, 2), (0.001, 1000, 2), (0.002, 1000, 2), (0.003, 40, 2)]

    as_they_come = serve(a_pod(batch=1), *rows)
    by_deadline = serve(a_pod(batch=1, sla=sla), *rows)

    assert by_deadline.ttft_ms[3] < as_they_come.ttft_ms[1] < as_they_come.ttft_ms[3]
    assert by_deadline.ttft(1.0, 1, 50) == by_deadline.ttft_ms[3]
    assert by_deadline.ttft(1.0, 51) == max(by_deadline.ttft_ms[:3])
    assert by_deadline.ttft(1.0, 1, 9) == 0.0
    assert by_deadline.attainment(sla) == 0.75


def test_chance_follows_the_seed() -> None:
    """A plan is compared with the one before a change."""
    pod = a_pod(q_r=1.3)
    requests = [TracedRequest(0.01 * i, 50, 5) for i in range(20)]

    one, again, other = (pod.serve(requests, seed=seed).ttft_ms.tolist() for seed in (3, 3, 4))

    assert one == again != other
