"""`POST /v1/completions`."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar.keys import BearerKeys
from paceline_sidecar.openai.completion_request import CompletionRequest
from paceline_sidecar.openai.completion_response import CompletionResponseBuilder
from paceline_sidecar.openai.job import completion_job
from paceline_sidecar.routes.answering import answer, authorise, understand
from paceline_sidecar.service import Service


def completions_router(
    service: Service, *, keys: BearerKeys | None, max_body_bytes: int
) -> APIRouter:
    """Text in, text out."""
    router = APIRouter()

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        salt = authorise(request, keys)
        asked = await understand(request, CompletionRequest, max_body_bytes=max_body_bytes)
        return await answer(
            service,
            request,
            asked,
            salt=salt,
            job_of=completion_job,
            builder_of=CompletionResponseBuilder,
        )

    return router
