"""A real Envoy in front of two pods, with the example's policy: what it makes of our answers.

Each pod is a whole sidecar in front of a scripted engine.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from paceline_sidecar.load_report import HEADER
from paceline_testing.envoy import Envoy, envoy
from paceline_testing.free_port import free_port
from paceline_testing.scripted_pod import ScriptedPod, scripted_pod
from paceline_testing.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "gateway" / "balance.yaml"
_CHAT = {"model": "scripted", "prompt": "Hi"}


@pytest.fixture
def pods() -> Iterator[list[ScriptedPod]]:
    """Two, on addresses of their own, as both tell their load on the same port."""
    port = free_port()
    with ExitStack() as stack:
        yield [
            stack.enter_context(scripted_pod(host=host, load_report_port=port))
            for host in ("127.0.0.1", "127.0.0.2")
        ]


def policy(report_port: int) -> dict[str, Any]:
    """The example's; only the times until weights count are shorter."""
    spec: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())["spec"]
    balance = spec["loadBalancer"]["backendUtilization"]
    balance |= {"blackoutPeriod": "0.1s", "weightUpdatePeriod": "0.1s"}
    balance["outOfBand"] |= {"port": report_port, "reportingPeriod": "0.2s"}
    return spec


def in_front_of(pods: list[ScriptedPod]) -> AbstractContextManager[Envoy]:
    told = [pod.sidecar.settings for pod in pods]
    report_port = told[0].load_report_port
    assert report_port is not None
    return envoy([(each.host, each.port) for each in told], policy(report_port))


@pytest.fixture
def proxy(pods: list[ScriptedPod]) -> Iterator[Envoy]:
    with in_front_of(pods) as running:
        yield running


@pytest.fixture
def gateway(proxy: Envoy) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy.url, timeout=60) as client:
        yield client


def tell(pods: list[ScriptedPod], capacities_rps: Sequence[float]) -> None:
    """Have each pod take its λ*, as the operator says it."""
    for pod, capacity_rps in zip(pods, capacities_rps, strict=True):
        change = {"epoch": 1, "lease_s": 600, "capacity_rps": capacity_rps}
        assert pod.sidecar.admin.patch("/runtime/limits", json=change).status_code == 200


def got_by_first(pods: list[ScriptedPod], client: httpx.Client, *, of: int) -> int:
    """Ask so often; how many of the requests the first pod got."""
    before = [len(pod.engine.submitted) for pod in pods]
    for _ in range(of):
        assert client.post("/v1/completions", json=_CHAT).status_code == 200
    got = [len(pod.engine.submitted) - had for pod, had in zip(pods, before, strict=True)]
    assert sum(got) == of
    return got[0]


def has_learned(pods: list[ScriptedPod], client: httpx.Client) -> bool:
    """Ask a batch; whether the smaller pod got its small share of it."""
    return got_by_first(pods, client, of=50) <= 15


@pytest.mark.parametrize(
    "capacities_rps", [(2, 18), (0.08, 0.72)], ids=["several a second", "less than one a second"]
)
def test_pods_get_requests_by_the_capacity_that_they_report(
    pods: list[ScriptedPod], gateway: httpx.Client, capacities_rps: tuple[float, float]
) -> None:
    """The second pod gets nine requests for each one of the first, however large the model is."""
    tell(pods, capacities_rps)

    # Envoy learns from what it is told meanwhile, and a busy machine is slow to tell.
    wait_until(lambda: 15 <= got_by_first(pods, gateway, of=200) <= 25, within_s=480)


def test_a_pods_weight_follows_it_without_a_request(
    pods: list[ScriptedPod], proxy: Envoy, gateway: httpx.Client
) -> None:
    """Between answers Envoy hears of each pod on its other port.

    One request tells it of the cluster: it computes weights once it has balanced.
    """
    gateway.post("/v1/completions", json=_CHAT)
    tell(pods, (2, 18))
    wait_until(lambda: is_near(proxy.weights(), (200, 1800)))
    tell(pods, (18, 2))

    wait_until(lambda: is_near(proxy.weights(), (1800, 200)))

    assert proxy.count("cluster.pods.lb_orca_oob.report_errors") == 0


def is_near(found: list[int], weights: tuple[int, int]) -> bool:
    return all(0.9 < each / wanted < 1.1 for each, wanted in zip(found, weights, strict=True))


@pytest.mark.parametrize("gone", [0, 1])
def test_a_pod_that_tells_nothing_between_answers_is_known_by_its_answers(gone: int) -> None:
    """Such as one from before the port was there."""
    port = free_port()
    with ExitStack() as stack:
        pods = [
            stack.enter_context(scripted_pod(host=host, load_report_port=told))
            for host, told in zip(
                ("127.0.0.1", "127.0.0.2"),
                [None if i == gone else port for i in (0, 1)],
                strict=True,
            )
        ]
        found = [pod.sidecar.settings for pod in pods]
        running = stack.enter_context(envoy([(s.host, s.port) for s in found], policy(port)))
        client = stack.enter_context(httpx.Client(base_url=running.url, timeout=60))
        tell(pods, (2, 18))

        wait_until(lambda: has_learned(pods, client), within_s=120)


def test_a_pod_that_violates_its_sla_gets_less(
    pods: list[ScriptedPod], gateway: httpx.Client
) -> None:
    """Of two alike, however much both could serve: each answer of the first is a miss."""
    tell(pods, (10_000, 10_000))
    late = {"epoch": 2, "sla": {"tpot_p99_ms": 1e-6}}
    assert pods[0].sidecar.admin.patch("/runtime/limits", json=late).status_code == 200

    wait_until(lambda: has_learned(pods, gateway), within_s=120)

    told = pods[0].sidecar.public.post("/v1/completions", json=_CHAT).headers[HEADER]
    assert json.loads(told.removeprefix("JSON "))["named_metrics"]["sla_violated"] == 1


def test_the_report_stays_behind_the_gateway(gateway: httpx.Client) -> None:
    """The gateway takes it out: callers are not told how busy the pods are."""
    answer = gateway.post("/v1/completions", json=_CHAT)

    assert answer.status_code == 200
    assert "endpoint-load-metrics" not in answer.headers
    assert answer.headers["x-request-id"]


def test_a_stream_passes_as_it_comes(pods: list[ScriptedPod], gateway: httpx.Client) -> None:
    """The first pieces are there while the engine still holds the rest."""
    for pod in pods:
        pod.engine.script.hold_after = 2
    body = _CHAT | {"stream": True}

    with gateway.stream("POST", "/v1/completions", json=body) as answer:
        lines = (line for line in answer.iter_lines() if line)
        first = json.loads(next(lines).removeprefix("data: "))
        is_held = any(pod.engine.running for pod in pods)

    assert first["choices"][0]["text"]
    assert is_held


def test_a_503_is_tried_on_the_other_pod(pods: list[ScriptedPod], gateway: httpx.Client) -> None:
    """A pod whose engine is gone says 503 with Retry-After before any part of an answer."""
    pods[0].engine.stop()
    wait_until(lambda: not pods[0].sidecar.ready())
    direct = pods[0].sidecar.public.post("/v1/completions", json=_CHAT)

    answers = [gateway.post("/v1/completions", json=_CHAT) for _ in range(20)]

    assert (direct.status_code, "retry-after" in direct.headers) == (503, True)
    assert Counter(answer.status_code for answer in answers) == {200: 20}


def test_a_pod_that_is_down_costs_no_request(
    pods: list[ScriptedPod], gateway: httpx.Client
) -> None:
    """A refused connection is tried on the other one, too."""
    pods[0].stop()

    answers = [gateway.post("/v1/completions", json=_CHAT) for _ in range(20)]

    assert Counter(answer.status_code for answer in answers) == {200: 20}


def test_a_429_is_passed_on_with_its_time(pods: list[ScriptedPod], gateway: httpx.Client) -> None:
    """No second pod is asked: an overload must not be doubled."""
    full = {"epoch": 2, "lease_s": 600, "admission": {"max_queued_requests": 1}}
    for pod in pods:
        assert pod.sidecar.admin.patch("/runtime/limits", json=full).status_code == 200

    for pod in pods:
        pod.engine.script.hold_after = 0
    with ThreadPoolExecutor(len(pods)) as pool:
        held = [pool.submit(_ask, pod) for pod in pods]
        wait_until(lambda: all(pod.engine.running for pod in pods))
        answer = gateway.post("/v1/completions", json=_CHAT | {"prompt": ["a", "b"]})
        for pod in pods:
            pod.engine.script.hold_after = None
        assert [each.result(timeout=30) for each in held] == [200, 200]

    refusals = sorted(pod.refusals() for pod in pods)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert refusals == [0, 2]  # both prompts, by one pod


def _ask(pod: ScriptedPod) -> int:
    return pod.sidecar.public.post("/v1/completions", json=_CHAT).status_code
