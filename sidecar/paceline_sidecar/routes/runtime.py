"""`/runtime/limits`, `/runtime/telemetry` and `/runtime/profile`, on the admin port only."""

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar.connection import read_body
from paceline_sidecar.errors import InvalidRequest, Unauthorized
from paceline_sidecar.keys import BearerKeys
from paceline_sidecar.openai.error_response import body_of
from paceline_sidecar.runtime_bodies import (
    ProfileBody,
    TelemetryBody,
    info_of,
    request_of,
    sketch_of,
    step_of,
)
from paceline_sidecar.runtime_control import ChangeRefused, EpochTooOld, RuntimeControl
from paceline_sidecar.runtime_patch import LimitsPatch
from paceline_sidecar.service import Service

_MAX_PATCH_BYTES = 64 * 1024
_UNPROCESSABLE = 422
_CONFLICT = 409


def runtime_router(
    service: Service, control: RuntimeControl, token: BearerKeys | None
) -> APIRouter:
    """Hot configuration and telemetry, for the operator."""
    router = APIRouter(prefix="/runtime")

    @router.get("/limits")
    async def read_limits(request: Request) -> Response:
        _authorise(request, token)
        return _json(control.state())

    @router.patch("/limits")
    async def patch_limits(request: Request) -> Response:
        _authorise(request, token)
        try:
            body = await read_body(request, max_bytes=_MAX_PATCH_BYTES)
            patch = msgspec.json.decode(body, type=LimitsPatch)
            return _json(await control.patch(patch))
        except EpochTooOld:
            return _json(control.state(), _CONFLICT)
        except (msgspec.DecodeError, ChangeRefused, RecursionError) as error:
            refusal = InvalidRequest(str(error), param=_field(str(error)))
            return _json(body_of(refusal), _UNPROCESSABLE)

    @router.get("/telemetry")
    async def telemetry(request: Request) -> Response:
        _authorise(request, token)
        since = request.query_params.get("since", "0")
        if not (since.isascii() and since.isdecimal() and len(since) < 19):  # noqa: PLR2004 - int64
            refusal = InvalidRequest("since is a number that was `next` before", param="since")
            return _json(body_of(refusal), _UNPROCESSABLE)
        return _json(telemetry_body(service, control, int(since)))

    @router.get("/profile")
    async def profile(request: Request) -> Response:
        _authorise(request, token)
        view = service.backend.view
        return _json(ProfileBody(view.instance, view.profile))

    return router


def telemetry_body(service: Service, control: RuntimeControl, since: int) -> TelemetryBody:
    """All that happened after `since`."""
    ledger, view = service.ledger, service.backend.view
    # A number that was never given comes from before a restart of this process.
    since = since if since <= ledger.sequence.last else 0
    steps, requests = ledger.steps.since(since), ledger.requests.since(since)
    heard = ledger.telemetry
    return TelemetryBody(
        instance=view.instance,
        now=service.clock(),
        next=ledger.sequence.last,
        lost=ledger.sequence.last - since - len(steps) - len(requests),
        ready=not service.missing(),
        limits=None if view.limits is None else control.state(),
        load=None if heard is None else heard.load,
        model=None if heard is None else heard.model,
        info=None if view.model is None else info_of(view.model),
        steps=[step_of(step.seq, step.record) for step in steps],
        requests=[request_of(request.seq, request.record) for request in requests],
        sketches=[sketch_of(part) for lane in ledger.lanes.values() for part in lane.gaps.slices()],
        adapters=service.adapters.states(),
    )


def _authorise(request: Request, token: BearerKeys | None) -> None:
    if token is None:
        raise Unauthorized("The runtime API is closed: no token file is set.")
    token.check(request.headers.get("authorization"))


def _json(answer: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


def _field(message: str) -> str | None:
    """The field in msgspec's `... - at `$.sla.ttft_p99_ms``, or in "unknown field `x`"."""
    for opening in ("`$.", "field `"):
        _, found, rest = message.partition(opening)
        if found:
            return rest.partition("`")[0].partition("[")[0]
    return None
