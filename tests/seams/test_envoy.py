"""A real Envoy in front of two pods, with the example's policy: what it makes of our answers.

Each pod is a whole sidecar in front of a scripted engine.
"""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from paceline_testing.envoy import envoy
from paceline_testing.scripted_pod import ScriptedPod, scripted_pod
from paceline_testing.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "gateway" / "balance.yaml"
_CHAT = {"model": "scripted", "prompt": "Hi"}


@pytest.fixture
def pods() -> Iterator[list[ScriptedPod]]:
    with ExitStack() as stack:
        yield [stack.enter_context(scripted_pod()) for _ in range(2)]


def policy() -> dict[str, Any]:
    """The example's; only the time until weights count is shorter."""
    spec: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())["spec"]
    balance = spec["loadBalancer"]["backendUtilization"]
    balance |= {"blackoutPeriod": "0.1s", "weightUpdatePeriod": "0.1s"}
    return spec


@pytest.fixture
def gateway(pods: list[ScriptedPod]) -> Iterator[httpx.Client]:
    ports = [pod.port for pod in pods]
    with envoy(ports, policy()) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def has_learned(pods: list[ScriptedPod], client: httpx.Client) -> bool:
    """Ask a batch; whether the smaller pod got its small share of it."""
    before = [len(pod.engine.submitted) for pod in pods]
    for _ in range(50):
        assert client.post("/v1/completions", json=_CHAT).status_code == 200
    got = [len(pod.engine.submitted) - had for pod, had in zip(pods, before, strict=True)]
    return got[0] <= 15


@pytest.mark.parametrize(
    "capacities_rps", [(2, 18), (0.08, 0.72)], ids=["several a second", "less than one a second"]
)
def test_pods_get_requests_by_the_capacity_that_they_report(
    pods: list[ScriptedPod], gateway: httpx.Client, capacities_rps: tuple[float, float]
) -> None:
    """The second pod gets nine requests for each one of the first, however large the model is."""
    for pod, capacity_rps in zip(pods, capacities_rps, strict=True):
        change = {"epoch": 1, "lease_s": 600, "capacity_rps": capacity_rps}
        assert pod.sidecar.admin.patch("/runtime/limits", json=change).status_code == 200
    wait_until(lambda: has_learned(pods, gateway), within_s=120)
    before = [len(pod.engine.submitted) for pod in pods]

    for _ in range(200):
        gateway.post("/v1/completions", json=_CHAT)

    got = [len(pod.engine.submitted) - had for pod, had in zip(pods, before, strict=True)]
    assert sum(got) == 200
    assert 8 <= got[0] <= 50


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
