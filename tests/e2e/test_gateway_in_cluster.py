"""Envoy Gateway as its chart installs it, in front of two pods of a real service on a real node."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from local_cluster.rate_limit import redis, redis_stopped
from paceline_testing.gateway_objects import example
from paceline_testing.gateway_world import NAME, GatewayWorld, gateway_world
from paceline_testing.limited_callers import LIMIT, LimitedCallers, limited_callers
from paceline_testing.rolled_service import WITHIN_S
from paceline_testing.waiting import wait_until

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1800, func_only=True)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayWorld]:
    with gateway_world(tmp_path_factory.mktemp("gateway")) as world:
        yield world


@pytest.fixture
def limited(world: GatewayWorld) -> Iterator[LimitedCallers]:
    with limited_callers(world) as limited:
        yield limited


def test_the_gateway_takes_the_policy_that_the_operator_renders(world: GatewayWorld) -> None:
    """It says so itself: weights by utilization are its own work, not ours."""
    wait_until(lambda: world.policy_conditions().get("Accepted") == "True", every_s=0.5)


def test_both_pods_answer_through_one_address(world: GatewayWorld) -> None:
    """And what they say of their load goes no further than the gateway."""
    before = world.served()
    body = {"model": NAME, "prompt": "One, two, three,", "max_tokens": 4}
    with httpx.Client(base_url=world.url, timeout=120) as client, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/completions", json=body), range(40)))

    assert {answer.status_code for answer in answers} == {200}
    assert not any("endpoint-load-metrics" in answer.headers for answer in answers)
    got = {name: count - before[name] for name, count in world.served().items()}
    assert min(got.values()) > 0
    assert sum(got.values()) >= 40


def test_the_gateway_hears_of_the_pods_between_answers(world: GatewayWorld) -> None:
    """As the operator's policy asks: once a second, on a port of its own, without a request."""
    body = {"model": NAME, "prompt": "One, two, three,", "max_tokens": 4}
    assert httpx.post(f"{world.url}/v1/completions", json=body, timeout=120).status_code == 200
    before = world.reports_between_answers()

    wait_until(lambda: world.reports_between_answers() >= before + 4, every_s=0.5)


def test_a_stream_arrives_piece_by_piece(world: GatewayWorld) -> None:
    """Nothing on the way keeps it until it is whole."""
    body = {"model": NAME, "prompt": "Once upon a time", "max_tokens": 32, "stream": True}
    with httpx.stream("POST", f"{world.url}/v1/completions", json=body, timeout=120) as answer:
        pieces = [piece for piece in answer.iter_raw() if piece]

    assert len(pieces) >= 8
    assert pieces[-1].endswith(b"data: [DONE]\n\n")


def _body(**more: Any) -> dict[str, Any]:
    return {
        "model": NAME,
        "prompt": "Once upon a time",
        "max_tokens": 32,
        "ignore_eos": True,
    } | more


def test_who_has_spent_his_tokens_is_refused_and_nobody_else(limited: LimitedCallers) -> None:
    """The usage of the answers is counted, under the name of the key and not that of a header."""
    told = 0
    with limited.client("alice") as alice, limited.client("bob") as bob:
        while told <= LIMIT:
            answer = alice.post("/v1/completions", json=_body())
            assert answer.status_code == 200, answer.text
            assert int(answer.headers["x-ratelimit-remaining"]) == LIMIT - told
            told += answer.json()["usage"]["total_tokens"]
            limited.comes_to("alice", told)
        refused = [
            alice.post("/v1/completions", json=_body()),
            alice.post("/v1/completions", json=_body(), headers={"x-caller": "bob"}),
        ]
        answered = bob.post("/v1/completions", json=_body())

    assert [each.status_code for each in refused] == [429, 429]
    assert int(refused[0].headers["x-ratelimit-reset"]) > 0  # seconds until the window ends
    assert answered.status_code == 200
    assert httpx.get(f"{limited.world.url}/v1/models").status_code == 401
    limited.comes_to("alice", told)
    limited.comes_to("bob", answered.json()["usage"]["total_tokens"])


def test_a_stream_counts_what_it_says_and_still_arrives_piece_by_piece(
    limited: LimitedCallers,
) -> None:
    body = _body(stream=True, stream_options={"include_usage": True})
    pieces = limited.streamed("alice", "/v1/completions", body)

    assert len(pieces) >= 8
    *_, last, done = b"".join(pieces).strip().split(b"\n\n")
    assert done == b"data: [DONE]"
    limited.comes_to("alice", json.loads(last.removeprefix(b"data: "))["usage"]["total_tokens"])


def test_a_stream_without_its_usage_costs_its_events_and_its_request(
    limited: LimitedCallers,
) -> None:
    """About what it would have told: an event is a token or more, a token some four bytes."""
    content = json.dumps(_body(stream=True)).encode()
    pieces = limited.streamed("alice", "/v1/completions", content)

    limited.comes_to("alice", len(content) // 4 + b"".join(pieces).count(b"\n\n"))


def test_a_stream_that_is_left_costs_what_has_come(limited: LimitedCallers) -> None:
    """It would be for nothing otherwise: the usage comes last."""
    content = json.dumps(_body(stream=True, max_tokens=1000)).encode()
    with (
        limited.client("alice") as client,
        client.stream("POST", "/v1/completions", content=content) as answer,
    ):
        raw = answer.iter_raw()
        events = b"".join(next(raw) for _ in range(3)).count(b"\n\n")

    wait_until(lambda: (limited.spent("alice") or 0) >= len(content) // 4 + events, every_s=0.2)


def test_the_other_apis_count_as_well(limited: LimitedCallers) -> None:
    """Each says its usage in its own words, in a stream too; a list of models costs nothing."""
    said = {"model": NAME, "max_tokens": 16, "messages": [{"role": "user", "content": "Hi"}]}
    asked = {"model": NAME, "max_output_tokens": 16, "input": "Hi"}
    with limited.client("alice") as client:
        assert client.get("/v1/models").status_code == 200
        limited.comes_to("alice", 0)
        chat = client.post("/v1/chat/completions", json=said).json()["usage"]
        message = client.post("/v1/messages", json=said).json()["usage"]
        response = client.post("/v1/responses", json=asked).json()["usage"]
    told = chat["total_tokens"] + _message_tokens(message) + response["total_tokens"]
    limited.comes_to("alice", told)

    told += _message_tokens(_last_usage(limited, "/v1/messages", said))
    limited.comes_to("alice", told)
    told += _last_usage(limited, "/v1/responses", asked)["total_tokens"]
    limited.comes_to("alice", told)


def _last_usage(limited: LimitedCallers, path: str, body: dict[str, Any]) -> dict[str, int]:
    text = b"".join(limited.streamed("alice", path, body | {"stream": True})).decode()
    data = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    usages = [each.get("usage") or each.get("response", {}).get("usage") for each in data]
    last: dict[str, int] = [usage for usage in usages if usage][-1]
    return last


def _message_tokens(usage: dict[str, int]) -> int:
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens")
    return sum(usage[name] for name in names)


def test_limits_of_the_gateway_leave_the_balancing_of_the_service(limited: LimitedCallers) -> None:
    """Envoy Gateway merges its policy and the operator's: reports are read and taken out."""
    world = limited.world
    assert world.policy_conditions()["Merged"] == "True"
    with limited.client("bob") as client:
        answer = client.post("/v1/completions", json=_body(max_tokens=1))

    assert answer.status_code == 200
    assert "endpoint-load-metrics" not in answer.headers
    assert "client_side_weighted_round_robin" in world.envoy_clusters()


def test_nobody_is_refused_while_redis_is_gone(limited: LimitedCallers) -> None:
    """Envoy lets a request pass when the rate limit service has no answer for it."""
    cluster = limited.world.service.cluster
    with limited.client("alice") as alice:
        first = alice.post("/v1/completions", json=_body(max_tokens=1))
        limited.comes_to("alice", first.json()["usage"]["total_tokens"])
        (key,) = limited.keys("alice")
        redis(cluster, "set", key, str(LIMIT + 1))
        refused = alice.post("/v1/completions", json=_body(max_tokens=1))
        with redis_stopped(cluster):
            answered = alice.post("/v1/completions", json=_body(max_tokens=1))

    assert [each.status_code for each in (first, refused, answered)] == [200, 429, 200]


def test_a_pod_that_leaves_costs_no_request(world: GatewayWorld) -> None:
    """The gateway learns of it from the cluster, and tries a refused request on the other."""
    leaving, staying = world.names()
    with world.service.under_load(gateway=world.url):
        world.kubectl("delete", "pod", leaving, "--wait=false")
        wait_until(
            lambda: leaving not in world.names() and world.service.serves(),
            within_s=WITHIN_S,
            every_s=1.0,
        )

    assert staying in world.names()


def test_a_request_that_finds_no_pod_waits_at_the_gateway_for_one(world: GatewayWorld) -> None:
    """The first request after a scale to zero is answered, by a client that asks once."""
    world.apply(example("from-zero.yaml"))
    world.kubectl("scale", f"pisvc/{NAME}", "--replicas=0")
    wait_until(lambda: not world.names(), within_s=WITHIN_S, every_s=0.5)
    wait_until(lambda: _is_held(world.url), within_s=WITHIN_S, every_s=0.5)

    body = {"model": NAME, "prompt": "One, two, three,", "max_tokens": 4}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{world.url}/v1/completions", json=body, timeout=600)
        world.kubectl("scale", f"pisvc/{NAME}", "--replicas=1")
        answer = asked.result()

    assert answer.status_code == 200, answer.text


def _is_held(url: str) -> bool:
    try:
        httpx.get(f"{url}/v1/models", timeout=3)
    except httpx.ReadTimeout:
        return True
    return False
