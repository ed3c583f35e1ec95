"""`POST /v1/embeddings` and `POST /v1/score`: numbers out."""

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar.openai.pooling_job import EmbeddingsJob, ScoresJob
from paceline_sidecar.openai.pooling_requests import EmbeddingsRequest, ScoreRequest
from paceline_sidecar.routes.endpoint import Endpoint
from paceline_wire import Pooling


def pooling_router(endpoint: Endpoint, *, pooling: Pooling) -> APIRouter:
    """Serve scores, and embeddings that are pooled as `pooling` says."""
    router = APIRouter()
    embeddings_job = partial(EmbeddingsJob, pooling=pooling)

    @router.post("/v1/embeddings")
    async def embeddings(request: Request) -> Response:
        return await endpoint.pool(request, EmbeddingsRequest, embeddings_job)

    @router.post("/v1/score")
    async def score(request: Request) -> Response:
        return await endpoint.pool(request, ScoreRequest, ScoresJob)

    return router
