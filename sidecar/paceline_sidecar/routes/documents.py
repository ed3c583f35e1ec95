"""`/openapi.json` and `/docs`: what this port takes and answers, for tools and for people."""

from functools import cache

import msgspec
from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse, Response

from paceline_sidecar import __version__
from paceline_sidecar.openai.api_document import api_document

DOCUMENT = "/openapi.json"


def documents_router(*, has_keys: bool) -> APIRouter:
    """Serve both to everybody: they are the same for every service, and say nothing of it."""
    router = APIRouter()

    @cache
    def written() -> bytes:
        return msgspec.json.encode(api_document(version=__version__, has_keys=has_keys))

    # Not `async`: writing the document takes milliseconds, in a thread of its own.
    @router.get(DOCUMENT)
    def document() -> Response:
        return Response(written(), media_type="application/json")

    @router.get("/docs")
    def page() -> HTMLResponse:
        return get_swagger_ui_html(openapi_url=DOCUMENT, title="Paceline")

    return router
