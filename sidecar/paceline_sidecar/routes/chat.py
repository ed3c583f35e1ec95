"""`POST /v1/chat/completions`."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar.keys import BearerKeys
from paceline_sidecar.openai.chat_request import ChatRequest
from paceline_sidecar.openai.chat_response import ChatResponseBuilder
from paceline_sidecar.openai.job import chat_job
from paceline_sidecar.routes.answering import answer, authorise, understand
from paceline_sidecar.service import Service


def chat_router(service: Service, *, keys: BearerKeys | None, max_body_bytes: int) -> APIRouter:
    """A conversation in, its next turn out."""
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        salt = authorise(request, keys)
        asked = await understand(request, ChatRequest, max_body_bytes=max_body_bytes)
        return await answer(
            service, request, asked, salt=salt, job_of=chat_job, builder_of=ChatResponseBuilder
        )

    return router
