"""`/runtime/limits`, `/runtime/telemetry` and `/runtime/profile`, on the admin port only."""

import math
import socket

import msgspec
from fastapi import APIRouter
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar.connection import read_body
from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.keys import BearerKeys, authorise
from paceline_sidecar.metrics.sample import by_class, sampled_requests, sampled_steps
from paceline_sidecar.openai.error_response import body_of
from paceline_sidecar.runtime_bodies import (
    ProfileBody,
    ProfileRequest,
    TelemetryBody,
    info_of,
    request_of,
    request_row,
    sketch_of,
    step_of,
    step_row,
)
from paceline_sidecar.runtime_control import (
    AnotherEngine,
    ChangeRefused,
    EpochTooOld,
    RuntimeControl,
)
from paceline_sidecar.runtime_patch import LimitsPatch
from paceline_sidecar.service import Service
from paceline_wire import EngineLoad, ProfileSteps, StepTrace

_MAX_PATCH_BYTES = 64 * 1024
_UNPROCESSABLE = 422
_CONFLICT = 409
_DIGITS = 19  # of an int64, and one more
_RUNNING = 4  # times the sample: running requests tell more of lengths than ended ones


def runtime_router(
    service: Service, control: RuntimeControl, token: BearerKeys | None
) -> APIRouter:
    """Hot configuration and telemetry, for the operator."""
    router = APIRouter(prefix="/runtime")

    @router.get("/limits")
    async def read_limits(request: Request) -> Response:
        authorise(token, request.headers.get("authorization"))
        return _json(control.state())

    @router.patch("/limits")
    async def patch_limits(request: Request) -> Response:
        authorise(token, request.headers.get("authorization"))
        try:
            body = await read_body(request, max_bytes=_MAX_PATCH_BYTES)
            patch = msgspec.json.decode(body, type=LimitsPatch)
            return _json(await control.patch(patch))
        except (EpochTooOld, AnotherEngine):
            return _json(control.state(), _CONFLICT)
        except (msgspec.DecodeError, ChangeRefused, RecursionError) as error:
            refusal = InvalidRequest(str(error), param=_field(str(error)))
            return _json(body_of(refusal), _UNPROCESSABLE)

    @router.get("/telemetry")
    async def telemetry(request: Request) -> Response:
        authorise(token, request.headers.get("authorization"))
        asked = {name: request.query_params.get(name, "0") for name in ("since", "sample")}
        for name, value in asked.items():
            if not (value.isascii() and value.isdecimal() and len(value) < _DIGITS):
                means = "was `next` before" if name == "since" else "bounds the records of a sample"
                refusal = InvalidRequest(f"{name} is a number that {means}", param=name)
                return _json(body_of(refusal), _UNPROCESSABLE)
        whole = telemetry_body(service, control, int(asked["since"]), sample=int(asked["sample"]))
        return _json(whole)

    @router.get("/profile")
    async def profile(request: Request) -> Response:
        authorise(token, request.headers.get("authorization"))
        view = service.backend.view
        return _json(ProfileBody(view.instance, view.profile))

    _add_step_profiles(router, service, token)
    return router


def _add_step_profiles(router: APIRouter, service: Service, token: BearerKeys | None) -> None:
    @router.post("/profile")
    async def record_steps(request: Request) -> Response:
        authorise(token, request.headers.get("authorization"))
        try:
            body = await read_body(request, max_bytes=_MAX_PATCH_BYTES)
            wanted = msgspec.json.decode(body, type=ProfileRequest)
        except (msgspec.DecodeError, RecursionError) as error:
            refusal = InvalidRequest(str(error), param=_field(str(error)))
            return _json(body_of(refusal), _UNPROCESSABLE)
        asked = ProfileSteps(call=0, steps=wanted.steps, within_s=wanted.within_s)
        return _trace(await service.backend.profile_steps(asked))


def telemetry_body(
    service: Service, control: RuntimeControl, since: int, *, sample: int = 0
) -> TelemetryBody:
    """All that happened after `since`; with `sample`, about so many records of each 5 s."""
    ledger, view = service.ledger, service.backend.view
    # A number that was never given comes from before a restart of this process.
    since = since if since <= ledger.sequence.last else 0
    steps, requests = ledger.steps.since(since), ledger.requests.since(since)
    heard = ledger.telemetry
    load = None if heard is None else heard.load
    # No gap is older than the step that made it, and older slices have been read.
    grown_since = steps[0].record.at if sample and since and steps else -math.inf
    parts = [part for lane in ledger.lanes.values() for part in lane.gaps.slices(grown_since)]
    return TelemetryBody(
        instance=view.instance,
        now=service.clock(),
        next=ledger.sequence.last,
        lost=ledger.sequence.last - since - len(steps) - len(requests),
        ready=not service.missing(),
        limits=None if view.limits is None else control.state(),
        load=_thinned(load, sample) if load is not None and sample else load,
        model=None if heard is None else heard.model,
        info=None if view.model is None else info_of(view.model),
        steps=[] if sample else [step_of(step.seq, step.record) for step in steps],
        requests=[] if sample else [request_of(one.seq, one.record) for one in requests],
        sketches=[sketch_of(part) for part in parts],
        adapters=service.adapters.states(),
        pod=socket.gethostname(),
        step_rows=[step_row(g) for g in sampled_steps(steps, sample)] if sample else UNSET,
        request_rows=[
            request_row(group)
            for group in sampled_requests(requests, sample, by_class(service.config))
        ]
        if sample
        else UNSET,
    )


def _thinned(load: EngineLoad, sample: int) -> EngineLoad:
    """Keep an even sample of what the running requests have made."""
    made = load.running_output_tokens
    stride = max(1, math.ceil(len(made) / (_RUNNING * sample)))
    return msgspec.structs.replace(load, running_output_tokens=made[::stride])


def _trace(found: StepTrace) -> Response:
    """Answer with a trace as a file, or say why there is none."""
    if found.error is not None:
        field, colon, _ = found.error.partition(": ")
        refusal = InvalidRequest(found.error, param=field if colon else None)
        return _json(body_of(refusal), _CONFLICT if found.is_busy else _UNPROCESSABLE)
    name = f"{socket.gethostname()}.{found.steps}-steps.json.gz"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(found.chrome_gzip, media_type="application/gzip", headers=headers)


def _json(answer: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


def _field(message: str) -> str | None:
    """The field in msgspec's `... - at `$.sla.ttft_p99_ms``, or in "unknown field `x`"."""
    for opening in ("`$.", "field `"):
        _, found, rest = message.partition(opening)
        if found:
            return rest.partition("`")[0].partition("[")[0]
    return None
