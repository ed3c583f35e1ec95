"""HTTP to a pod, from the cluster and from the command line: what is sent, how failures look."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from paceline_cli.pod_client import HttpxPodClient
from paceline_operator.errors import NotLeadingError
from paceline_operator.pod_client import AiohttpPodClient
from paceline_testing.telemetry import a_limits, a_telemetry
from paceline_tuner.pods import (
    PodAnswerError,
    PodClient,
    PodRefusedError,
    PodUnreachableError,
    TokenRefusedError,
)
from paceline_tuner.sample import SAMPLE
from paceline_tuner.service_target import PodTarget

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pod:
    """A loopback pod that answers as it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: bytes = b"{}"
        self.status = 200
        self.is_silent = False
        self.seen: list[tuple[str, str, str, bytes]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "")
        self.seen.append((request.method, request.path_qs, token, await request.read()))
        if self.is_silent:
            assert request.transport is not None
            request.transport.close()
        headers = {"Location": "http://127.0.0.1:9/steal"} if self.status == 302 else {}
        return web.Response(body=self.answer, status=self.status, headers=headers)

    @property
    def target(self) -> PodTarget:
        return PodTarget("pod-1", self.url, "secret")


@pytest.fixture
async def pod() -> AsyncIterator[Pod]:
    pod = Pod()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", pod.handle)
    server = TestServer(app)
    await server.start_server()
    pod.url = str(server.make_url("")).rstrip("/")
    yield pod
    await server.close()


Client = type[AiohttpPodClient] | type[HttpxPodClient]


@pytest.fixture(params=[AiohttpPodClient, HttpxPodClient], ids=["operator", "cli"])
def kind(request: pytest.FixtureRequest) -> Client:
    chosen: Client = request.param
    return chosen


@pytest.fixture
async def client(kind: Client) -> AsyncIterator[PodClient]:
    async with kind(timeout_s=30.0) as client:
        yield client


async def test_telemetry_is_read_from_where_the_last_read_ended(
    pod: Pod, kind: Client, client: PodClient
) -> None:
    """The answer is typed, the token sent, and `since` resumes; the operator reads a sample."""
    told = a_telemetry(100.0)
    pod.answer = msgspec.json.encode(told)

    read = await client.get_telemetry(pod.target, 41)

    assert read == told
    sample = f"&sample={SAMPLE}" if kind is AiohttpPodClient else ""
    assert pod.seen == [("GET", f"/runtime/telemetry?since=41{sample}", "Bearer secret", b"")]


async def test_limits_are_patched_as_given(pod: Pod, client: PodClient) -> None:
    """A null step target must arrive as null: it switches the pacer off."""
    pod.answer = msgspec.json.encode(a_limits(epoch=4))

    answer = await client.patch_limits(pod.target, {"epoch": 4, "step_target_ms": None})

    assert answer.epoch == 4
    method, path, _, body = pod.seen[0]
    assert (method, path) == ("PATCH", "/runtime/limits")
    assert json.loads(body) == {"epoch": 4, "step_target_ms": None}


@pytest.mark.parametrize("status", [302, 401, 409, 422, 503])
async def test_a_refusal_keeps_its_status(pod: Pod, client: PodClient, status: int) -> None:
    """Neither a redirect nor an error is taken for an answer."""
    pod.status, pod.answer = status, b'{"error": "epoch is old"}'

    with pytest.raises(PodRefusedError, match="epoch is old") as caught:
        await client.patch_limits(pod.target, {"epoch": 4})

    assert caught.value.status == status
    assert isinstance(caught.value, TokenRefusedError) is (status == 401)


@pytest.mark.parametrize(
    "answer", [b"", b"not json", b'{"instance": 3}'], ids=["empty", "text", "wrong-type"]
)
async def test_an_answer_that_is_not_the_contract_is_told(
    pod: Pod, client: PodClient, answer: bytes
) -> None:
    """The pod is named, and nothing is decided from half an answer."""
    pod.answer = answer

    with pytest.raises(PodAnswerError, match="pod-1"):
        await client.get_telemetry(pod.target, 0)


async def test_a_pod_that_hangs_up_is_unreachable(pod: Pod, client: PodClient) -> None:
    """A killed sidecar is a failure of that pod only."""
    pod.is_silent = True

    with pytest.raises(PodUnreachableError, match="pod-1"):
        await client.get_telemetry(pod.target, 0)


async def test_nobody_listening_is_unreachable(client: PodClient) -> None:
    """A pod that is gone refuses connections."""
    with pytest.raises(PodUnreachableError, match="gone"):
        await client.get_telemetry(PodTarget("gone", "http://127.0.0.1:1", "t"), 0)


async def test_a_pod_that_never_answers_is_given_up(pod: Pod, kind: Client) -> None:
    """A time limit holds for the whole call."""
    async with kind(timeout_s=0.0001) as hasty:
        with pytest.raises(PodUnreachableError, match="no answer in"):
            await hasty.get_telemetry(pod.target, 0)


async def test_who_does_not_lead_changes_no_limits(pod: Pod) -> None:
    """The pod is not even asked."""

    def check() -> None:
        raise NotLeadingError("another leads")

    async with AiohttpPodClient(check_leadership=check) as client:
        with pytest.raises(NotLeadingError):
            await client.patch_limits(pod.target, {"epoch": 4, "lease_s": 60.0})

    assert pod.seen == []
