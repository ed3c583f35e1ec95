"""The way of one OpenAI request: check the key, read the body, run while the client is there."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar import load_report
from paceline_sidecar.connection import read_body, while_connected
from paceline_sidecar.errors import ModelUnknown, Unauthorized
from paceline_sidecar.exchange import Exchange
from paceline_sidecar.generation import Delta
from paceline_sidecar.keys import ANYONE, BearerKeys, Principal
from paceline_sidecar.openai.api_request import ApiRequest, TextRequest, parse
from paceline_sidecar.openai.job import Caller, read_lane, read_timeout_s
from paceline_sidecar.openai.pooling_job import EmbeddingsJob, ScoresJob
from paceline_sidecar.openai.responses import GatheredChoice, ResponseBuilder
from paceline_sidecar.openai.stream import EventStream
from paceline_sidecar.service import Service
from paceline_sidecar.submit import Job, open_exchange
from paceline_sidecar.tracing.names import REQUEST
from paceline_sidecar.tracing.trace import Trace

# Validating this much takes a few milliseconds: above it the event loop must not wait.
_LONG_BODY_BYTES = 64 * 1024

Body = TypeVar("Body", bound=ApiRequest)
TextBody = TypeVar("TextBody", bound=TextRequest)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What the OpenAI paths share: the service, who may call it, and how much a body may hold."""

    service: Service
    keys: BearerKeys | None
    max_body_bytes: int
    reports_load: bool = True

    def check_key(self, request: Request) -> Principal:
        """Return who calls; raises `Unauthorized`. Anthropic's clients send `x-api-key`."""
        if self.keys is None:
            return ANYONE
        plain_key = request.headers.get("x-api-key")
        offered = None if plain_key is None else f"Bearer {plain_key}"
        try:
            principal = self.keys.check(request.headers.get("authorization", offered))
        except Unauthorized:
            self.service.ledger.refusals["unauthorized"] += 1
            raise
        request.scope["answer_headers"] = partial(self._rate_limits, principal)
        return principal

    def _rate_limits(self, principal: Principal) -> dict[str, str]:
        return self.service.key_gate.headers(principal, self.service.config.admission)

    def _report_load(self, request: Request) -> None:
        """Have the answer say how busy this pod is, a refusal's too; strangers are not told."""
        self.service.load_meter.offered()
        if not self.reports_load:
            return
        told: Callable[[], dict[str, str]] | None = request.scope.get("answer_headers")
        kind = load_report.read_format(request.headers)

        def headers() -> dict[str, str]:
            own = {load_report.HEADER: self.service.load().header(kind)}
            return own if told is None else {**told(), **own}

        request.scope["answer_headers"] = headers

    async def generate(
        self,
        request: Request,
        kind: type[TextBody],
        job_of: Callable[[TextBody, Caller], Job],
        builder_of: Callable[[Service, TextBody], ResponseBuilder],
    ) -> Response:
        """Answer with text; a failure before the first byte is raised, a later one is an event."""
        self._begin_trace(request)
        principal = self.check_key(request)
        self._report_load(request)
        body = await self.read(request, kind)
        job = job_of(body, self._caller(request, body, principal))
        if job.trace is not None:
            job.trace.is_stream = bool(body.stream)
        builder = builder_of(self.service, body)
        if body.stream:
            opened = await while_connected(request.receive, self._open_and_wait(job))
            return EventStream(opened[0], builder, opened[1])
        choices = await while_connected(request.receive, self.gather(job))
        return json_response(builder.response(choices))

    async def pool(
        self,
        request: Request,
        kind: type[Body],
        job_of: Callable[[Body], EmbeddingsJob | ScoresJob],
    ) -> Response:
        """Answer with numbers."""
        self._begin_trace(request)
        principal = self.check_key(request)
        self._report_load(request)
        body = await self.read(request, kind)
        pooling = job_of(body)
        job = pooling.job(self._caller(request, body, principal))
        choices = await while_connected(request.receive, self.gather(job))
        return json_response(pooling.answer(self.service.name, choices))

    async def read(self, request: Request, kind: type[Body]) -> Body:
        """Return the validated body; raises `InvalidRequest`."""
        body = await read_body(request, max_bytes=self.max_body_bytes)
        if len(body) > _LONG_BODY_BYTES:
            return await run_in_threadpool(parse, kind, body)
        return parse(kind, body)

    def _caller(self, request: Request, body: ApiRequest, principal: Principal) -> Caller:
        # Callers with different keys share no cached prompt: they cannot time what others sent.
        salt = principal.id
        trace: Trace | None = request.scope.get("trace")
        return Caller(
            arrived_at=request.scope.get("arrived_at", self.service.clock()),
            lane=read_lane(request.headers, body.lane),
            timeout_s=read_timeout_s(request.headers),
            principal=principal,
            cache_salt=f"{salt}:{body.cache_salt}" if body.cache_salt else salt,
            adapter=self.adapter(body.model),
            trace=trace if trace is not None and trace.is_recorded else None,
        )

    def _begin_trace(self, request: Request) -> None:
        tracing, scope = self.service.tracing, request.scope
        if tracing is not None:
            name = REQUEST.format(path=scope["path"])
            arrived_at = scope.get("arrived_at", self.service.clock())
            trace = scope["trace"] = tracing.begin(name, request.headers, at=arrived_at)
            trace.request_id = scope.get("request_id", "")

    def batch_caller(
        self, body: ApiRequest, principal: Principal, trace: Trace | None = None
    ) -> Caller:
        """Return the caller of a batch's line: it may wait for all others."""
        salt = principal.id
        return Caller(
            arrived_at=self.service.clock(),
            lane="batch",
            principal=principal,
            cache_salt=f"{salt}:{body.cache_salt}" if body.cache_salt else salt,
            adapter=self.adapter(body.model),
            trace=trace,
        )

    def adapter(self, model: str | None) -> str:
        """Return the LoRA adapter of that name, empty for the model itself; or ModelUnknown."""
        if model is None or not self.service.name or model == self.service.name:
            return ""
        if model in self.service.backend.view.adapters:
            return model
        raise ModelUnknown(model)

    async def _open_and_wait(self, job: Job) -> tuple[Exchange, tuple[int, Delta] | None]:
        """Run up to the first piece: until then a failure still gets a status of its own."""
        exchange = await open_exchange(self.service, job)
        try:
            return exchange, await exchange.next()
        except BaseException as error:
            exchange.close(error)
            raise

    async def gather(self, job: Job) -> list[GatheredChoice]:
        """Run a job to its end."""
        with await open_exchange(self.service, job) as exchange:
            choices = [GatheredChoice(generation) for generation in exchange.generations]
            while (piece := await exchange.next()) is not None:
                index, delta = piece
                choices[index].add(delta)
            return choices


def json_response(answer: msgspec.Struct) -> Response:
    """Answer with JSON."""
    return Response(msgspec.json.encode(answer), media_type="application/json")
