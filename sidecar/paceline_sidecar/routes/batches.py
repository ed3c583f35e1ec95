"""`/v1/files` and `/v1/batches`: requests that may wait, many at once.

Every caller sees its own alone. Lines run in the batch lane, and wait where people do not leave
room for them.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from paceline_sidecar.batches.objects import Batch, BatchPage, BatchRequest, FileObject, FilePage
from paceline_sidecar.batches.runner import Answer, BatchRunner, aside
from paceline_sidecar.batches.store import BatchStore
from paceline_sidecar.batches.upload import receive_form
from paceline_sidecar.connection import read_body
from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.keys import Principal
from paceline_sidecar.openai.api_request import ApiRequest, GenerationRequest, parse
from paceline_sidecar.openai.chat_request import ChatRequest
from paceline_sidecar.openai.chat_response import ChatResponseBuilder
from paceline_sidecar.openai.completion_request import CompletionRequest
from paceline_sidecar.openai.completion_response import CompletionResponseBuilder
from paceline_sidecar.openai.job import chat_job, completion_job
from paceline_sidecar.openai.pooling_job import EmbeddingsJob
from paceline_sidecar.openai.pooling_requests import EmbeddingsRequest
from paceline_sidecar.routes.endpoint import Endpoint, json_response
from paceline_sidecar.service import Service
from paceline_sidecar.tracing.names import LINE
from paceline_sidecar.tracing.trace import Trace
from paceline_wire import Pooling

_MOST_PER_PAGE = 10_000
# A body that is being written holds a descriptor and a file: others wait, and are not read.
_UPLOADS_AT_ONCE = 4

Item = TypeVar("Item", FileObject, Batch)


def batches_router(
    endpoint: Endpoint, store: BatchStore, runner: BatchRunner, *, max_file_bytes: int
) -> APIRouter:
    """Serve `/v1/files` and `/v1/batches`."""
    router = APIRouter(prefix="/v1")
    _add_files(router, endpoint, store, max_file_bytes)

    @router.post("/batches")
    async def create(request: Request) -> Response:
        who = endpoint.check_key(request)
        text = await read_body(request, max_bytes=endpoint.max_body_bytes)
        body = parse(BatchRequest, text)
        add = partial(
            store.add_batch,
            who,
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            metadata=body.metadata,
        )
        batch = await aside(add)
        runner.notice()
        return json_response(batch)

    @router.get("/batches")
    async def batches(request: Request) -> Response:
        who = endpoint.check_key(request)
        data, more = _page(request, await aside(store.batches, who), most=100, default=20)
        return json_response(BatchPage(data, more, *_ends(data)))

    @router.get("/batches/{id}")
    async def batch(request: Request, id: str) -> Response:  # noqa: A002 - the error's param
        return json_response(await aside(store.batch, endpoint.check_key(request), id))

    @router.post("/batches/{id}/cancel")
    async def cancel(request: Request, id: str) -> Response:  # noqa: A002 - as above
        return json_response(await aside(store.cancel, endpoint.check_key(request), id))

    return router


def _add_files(
    router: APIRouter, endpoint: Endpoint, store: BatchStore, max_file_bytes: int
) -> None:
    uploads = asyncio.Semaphore(_UPLOADS_AT_ONCE)

    @router.post("/files")
    async def upload(request: Request) -> Response:
        who = endpoint.check_key(request)
        async with uploads:
            return json_response(await _upload(request, store, who, max_file_bytes))

    @router.get("/files")
    async def files(request: Request) -> Response:
        found = await aside(store.files, endpoint.check_key(request))
        if request.query_params.get("order", "desc") != "asc":
            found.reverse()
        purpose = request.query_params.get("purpose")
        found = [file for file in found if purpose in {None, file.purpose}]
        data, more = _page(request, found, most=_MOST_PER_PAGE, default=_MOST_PER_PAGE)
        return json_response(FilePage(data, more, *_ends(data)))

    @router.get("/files/{id}")
    async def file(request: Request, id: str) -> Response:  # noqa: A002 - the error's param
        return json_response(await aside(store.file, endpoint.check_key(request), id))

    @router.delete("/files/{id}")
    async def delete(request: Request, id: str) -> Response:  # noqa: A002 - as above
        return json_response(await aside(store.delete_file, endpoint.check_key(request), id))

    @router.get("/files/{id}/content")
    async def content(request: Request, id: str) -> Response:  # noqa: A002 - as above
        who = endpoint.check_key(request)
        await aside(store.file, who, id)
        return FileResponse(store.data_path(who, id), media_type="application/octet-stream")


async def _upload(
    request: Request, store: BatchStore, who: Principal, max_file_bytes: int
) -> FileObject:
    path = await aside(store.staging)
    try:
        form = await receive_form(request, path, max_bytes=max_file_bytes)
        if form.fields.get("purpose") != "batch":
            message = "purpose: files are for batches, so it must be `batch`"
            raise InvalidRequest(message, param="purpose")
        return await aside(store.add_file, who, path, form.filename)
    finally:
        await aside(path.unlink, True)


def _page(
    request: Request, items: Sequence[Item], *, most: int, default: int
) -> tuple[list[Item], bool]:
    """Return what follows `after`, at most `limit`, and whether there is more."""
    given = request.query_params.get("limit")
    limit = default
    if given is not None:
        limit = int(given[:9]) if given.isascii() and given.isdigit() else 0
        if not 1 <= limit <= most:
            raise InvalidRequest(f"limit is a number from 1 to {most}", param="limit")
    after = request.query_params.get("after")
    ids = [item.id for item in items]
    if after is not None and after not in ids:
        raise InvalidRequest("after: there is nothing with that id", param="after")
    start = 0 if after is None else ids.index(after) + 1
    return list(items[start : start + limit]), len(items) > start + limit


def _ends(data: Sequence[Item]) -> tuple[str | None, str | None]:
    return (data[0].id, data[-1].id) if data else (None, None)


def line_answerer(endpoint: Endpoint, pooling: Pooling) -> Answer:
    """Return what answers one line of a batch, as its endpoint would, in the batch lane."""

    async def chat(text: bytes, who: Principal, trace: Trace | None) -> msgspec.Struct:
        body = await _parsed(ChatRequest, text)
        job = chat_job(body, endpoint.batch_caller(body, who, trace))
        return ChatResponseBuilder(endpoint.service, body).response(await endpoint.gather(job))

    async def completion(text: bytes, who: Principal, trace: Trace | None) -> msgspec.Struct:
        body = await _parsed(CompletionRequest, text)
        job = completion_job(body, endpoint.batch_caller(body, who, trace))
        builder = CompletionResponseBuilder(endpoint.service, body)
        return builder.response(await endpoint.gather(job))

    async def embeddings(text: bytes, who: Principal, trace: Trace | None) -> msgspec.Struct:
        body = await _parsed(EmbeddingsRequest, text)
        wanted = EmbeddingsJob(body, pooling)
        choices = await endpoint.gather(wanted.job(endpoint.batch_caller(body, who, trace)))
        return wanted.answer(endpoint.service.name, choices)

    kinds = {
        "/v1/chat/completions": chat,
        "/v1/completions": completion,
        "/v1/embeddings": embeddings,
    }

    async def answer(url: str, body: bytes, who: Principal, batch_id: str) -> bytes:
        with _traced_line(endpoint.service, url, batch_id) as trace:
            return msgspec.json.encode(await kinds[url](body, who, trace))

    return answer


@contextmanager
def _traced_line(service: Service, url: str, batch_id: str) -> Iterator[Trace | None]:
    """Trace one try of a line, where that is asked for: it has no HTTP request of its own."""
    if service.tracing is None:
        yield None
        return
    trace = service.tracing.begin(LINE.format(path=url), None, at=service.clock())
    trace.batch_id = batch_id
    try:
        yield trace if trace.is_recorded else None
    except BaseException as error:
        trace.error = error
        raise
    finally:
        trace.finish(service.clock())


Body = TypeVar("Body", bound=ApiRequest)


async def _parsed(kind: type[Body], text: bytes) -> Body:
    body: Body = await aside(partial(parse, kind, text))
    if isinstance(body, GenerationRequest) and body.stream:
        raise InvalidRequest("stream: a line of a batch is not streamed", param="stream")
    return body
