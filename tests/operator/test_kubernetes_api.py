"""The client lists versions page by page, and asks for nothing else of the objects."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import ApiClient, Configuration

from paceline_operator.errors import ApiError
from paceline_operator.kubernetes_api import KubernetesClient
from paceline_operator.metrics import Metrics

_SERVICES = "/apis/serving.paceline.dev/v1alpha1/inferenceservices"
_IN_ML = "/apis/serving.paceline.dev/v1alpha1/namespaces/ml/inferenceservices"


def _item(name: str, version: int) -> dict[str, object]:
    return {"metadata": {"namespace": "ml", "name": name, "resourceVersion": str(version)}}


async def _list(request: web.Request) -> web.Response:
    """Answer as the API server does: two pages, and metadata where only that is asked for."""
    if not request.headers["Accept"].startswith("application/json;as=PartialObjectMetadataList"):
        return web.Response(status=406)
    if request.query.get("continue") == "rest of it":
        return web.json_response({"metadata": {}, "items": [_item("b", 12)]})
    metadata = {"continue": "rest of it", "resourceVersion": "12"}
    return web.json_response({"metadata": metadata, "items": [_item("a", 7)]})


async def _forbid(_: web.Request) -> web.Response:
    return web.json_response({"message": "you may not list", "reason": "Forbidden"}, status=403)


async def _hang(request: web.Request) -> web.Response:
    """Answer a write never, but note how long the server was given."""
    request.app[_GIVEN].append(request.query["timeout"])
    await asyncio.Event().wait()
    raise AssertionError


async def _greet(_: web.Request) -> web.Response:
    return web.Response(text="<html>Welcome!</html>")


_GIVEN = web.AppKey("given", list[str])


@pytest.fixture
def given() -> list[str]:
    """The time limits that the server was told of."""
    return []


@pytest.fixture
async def cluster(given: list[str]) -> AsyncIterator[KubernetesClient]:
    app = web.Application()
    app.router.add_get(_SERVICES, _list)
    app.router.add_get(_IN_ML, _forbid)
    app.router.add_get(f"{_IN_ML}/chat", _greet)
    app.router.add_patch(f"{_IN_ML}/chat", _hang)
    app[_GIVEN] = given
    async with TestServer(app) as server:
        configuration = Configuration()
        configuration.host = str(server.make_url("")).rstrip("/")
        api = ApiClient(configuration)
        yield KubernetesClient(api, Metrics())
        await api.close()


async def test_versions_are_listed_over_all_pages(cluster: KubernetesClient) -> None:
    assert await cluster.versions("InferenceService", "") == {"ml/a": 7, "ml/b": 12}


async def test_a_list_that_is_refused_is_an_error(cluster: KubernetesClient) -> None:
    """With the API server's words, for the sentence of /readyz."""
    with pytest.raises(ApiError, match="you may not list"):
        await cluster.versions("InferenceService", "ml")


async def test_an_answer_that_is_no_object_is_an_error(cluster: KubernetesClient) -> None:
    """A proxy's page with code 200 is tried again; it ends no task."""
    with pytest.raises(ApiError, match="no object in JSON, but b'<html>Welcome!</html>'"):
        await cluster.get("InferenceService", "ml", "chat")


async def test_a_write_is_given_up_by_both_sides(
    cluster: KubernetesClient, given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was taken for lost must not be done when another leads."""
    monkeypatch.setattr("paceline_operator.kubernetes_api.WRITE_TIMEOUT_S", 0.25)
    chat = {"kind": "InferenceService", "metadata": {"namespace": "ml", "name": "chat"}}

    with pytest.raises(ApiError, match="TimeoutError"):
        await cluster.apply(chat)

    assert given == ["0.25s"]
