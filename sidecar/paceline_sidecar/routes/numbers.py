"""`POST /v1/embeddings` and `POST /v1/score`."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar.keys import BearerKeys
from paceline_sidecar.openai.pooling_job import EmbeddingsJob, ScoresJob
from paceline_sidecar.openai.pooling_requests import EmbeddingsRequest, ScoreRequest
from paceline_sidecar.routes.answering import answer_numbers, authorise, understand
from paceline_sidecar.service import Service
from paceline_wire import Pooling


def numbers_router(
    service: Service, *, keys: BearerKeys | None, max_body_bytes: int, pooling: Pooling
) -> APIRouter:
    """Texts in, numbers out."""
    router = APIRouter()

    @router.post("/v1/embeddings")
    async def embeddings(request: Request) -> Response:
        salt = authorise(request, keys)
        asked = await understand(request, EmbeddingsRequest, max_body_bytes=max_body_bytes)
        return await answer_numbers(
            service, request, asked.model, EmbeddingsJob(asked, pooling), salt=salt
        )

    @router.post("/v1/score")
    async def score(request: Request) -> Response:
        salt = authorise(request, keys)
        asked = await understand(request, ScoreRequest, max_body_bytes=max_body_bytes)
        return await answer_numbers(service, request, asked.model, ScoresJob(asked), salt=salt)

    return router
