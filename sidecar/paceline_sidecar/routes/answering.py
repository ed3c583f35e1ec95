"""The way of one OpenAI request: understand, run while the client is there, answer."""

from collections.abc import Callable
from typing import TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar.connection import read_body, while_connected
from paceline_sidecar.errors import ModelUnknown
from paceline_sidecar.exchange import Exchange
from paceline_sidecar.generation import Delta
from paceline_sidecar.keys import BearerKeys
from paceline_sidecar.openai.api_request import ApiRequest, GenerationRequest, parse
from paceline_sidecar.openai.job import Caller, read_lane, read_timeout_s
from paceline_sidecar.openai.pooling_job import EmbeddingsJob, ScoresJob
from paceline_sidecar.openai.responses import GatheredChoice, ResponseBuilder
from paceline_sidecar.openai.stream import EventStream
from paceline_sidecar.service import Service
from paceline_sidecar.submit import Job, open_exchange

# Validating this much takes a few milliseconds: above it the event loop must not wait.
_LONG_BODY_BYTES = 64 * 1024

Asked = TypeVar("Asked", bound=GenerationRequest)
Kind = TypeVar("Kind", bound=ApiRequest)


async def understand(request: Request, kind: type[Kind], *, max_body_bytes: int) -> Kind:
    """Read and validate the body; raises `InvalidRequest`."""
    body = await read_body(request, max_bytes=max_body_bytes)
    if len(body) > _LONG_BODY_BYTES:
        return await run_in_threadpool(parse, kind, body)
    return parse(kind, body)


def authorise(request: Request, keys: BearerKeys | None) -> str:
    """The caller's salt for the prefix cache where keys are asked for; raises `Unauthorized`."""
    return "" if keys is None else keys.check(request.headers.get("authorization"))


async def answer_numbers(
    service: Service, request: Request, model: str, asked: EmbeddingsJob | ScoresJob, *, salt: str
) -> Response:
    """Run a request whose answer is no text."""
    job = asked.job(_caller(service, request, model, salt))
    choices = await while_connected(request.receive, _choices(service, job))
    numbers = asked.answer(service.name, choices)
    return Response(msgspec.json.encode(numbers), media_type="application/json")


async def answer(
    service: Service,
    request: Request,
    asked: Asked,
    *,
    salt: str,
    job_of: Callable[[Asked, Caller], Job],
    builder_of: Callable[[Service, Asked], ResponseBuilder],
) -> Response:
    """Run the request; a failure before the first byte is raised, a later one is an event."""
    job = job_of(asked, _caller(service, request, asked.model, salt))
    builder = builder_of(service, asked)
    if asked.stream:
        opened = await while_connected(request.receive, _open_and_wait(service, job))
        return EventStream(opened[0], builder, opened[1])
    whole = builder.whole(await while_connected(request.receive, _choices(service, job)))
    return Response(msgspec.json.encode(whole), media_type="application/json")


def _adapter(service: Service, model: str) -> str:
    """The LoRA adapter that the name stands for; empty for the model itself."""
    if not service.name or model == service.name:
        return ""
    if model in service.backend.view.adapters:
        return model
    raise ModelUnknown(model)


def _caller(service: Service, request: Request, model: str, salt: str) -> Caller:
    return Caller(
        arrived_at=request.scope.get("arrived_at", service.clock()),
        lane=read_lane(request.headers),
        timeout_s=read_timeout_s(request.headers),
        cache_salt=salt,
        adapter=_adapter(service, model),
    )


async def _open_and_wait(service: Service, job: Job) -> tuple[Exchange, tuple[int, Delta] | None]:
    """Up to the first piece: until then a failure still gets a status of its own."""
    exchange = await open_exchange(service, job)
    try:
        return exchange, await exchange.next()
    except BaseException as error:
        exchange.close(error)
        raise


async def _choices(service: Service, job: Job) -> list[GatheredChoice]:
    with await open_exchange(service, job) as exchange:
        choices = [GatheredChoice(generation) for generation in exchange.generations]
        while (piece := await exchange.next()) is not None:
            index, delta = piece
            choices[index].add(delta)
        return choices
