"""`/live`: the live page of this pod, on the admin port only.

The page is the same for every pod and says nothing of any, so that a browser can load it. What it
shows comes from `/live/events`, which asks for the token as the runtime API does.
"""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from paceline_page.document import document
from paceline_sidecar.errors import Unavailable
from paceline_sidecar.keys import BearerKeys, authorise
from paceline_sidecar.live.pod import LivePod
from paceline_sidecar.service import Service


def live_router(service: Service, live: LivePod, token: BearerKeys | None) -> APIRouter:
    """Serve the page to everyone on this port, and its data to holders of the token."""
    router = APIRouter(prefix="/live")

    @router.get("")
    async def page() -> Response:
        headers = {"content-security-policy": document().policy}
        return Response(document().html, headers=headers, media_type="text/html")

    @router.get("/events")
    async def events(request: Request) -> Response:
        authorise(token, request.headers.get("authorization"))
        if service.refusing:
            raise Unavailable("draining", "This server is going away.")
        return StreamingResponse(live.stream(), media_type="text/event-stream")

    return router
