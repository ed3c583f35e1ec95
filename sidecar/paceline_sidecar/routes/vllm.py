"""What vLLM serves and OpenAI does not: `/health`, `/ping`, `/version`, `/tokenize`, `/detokenize`.

Load balancers and benchmarks ask for the first three, without a key.
"""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar import __version__
from paceline_sidecar.connection import while_connected
from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.openai.tokenize_request import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from paceline_sidecar.routes.endpoint import Endpoint, json_response
from paceline_sidecar.service import Serving
from paceline_sidecar.text.codec import Codec


def vllm_router(endpoint: Endpoint) -> APIRouter:
    """Serve these paths on the public port."""
    router, service = APIRouter(), endpoint.service

    # Amazon SageMaker asks for /ping, with either method.
    @router.get("/health")
    @router.get("/ping")
    @router.post("/ping")
    async def health() -> Response:
        return Response(status_code=503 if service.missing() else 200)

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @router.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        endpoint.check_key(request)
        body = await endpoint.read(request, TokenizeRequest)
        serving = _serving(endpoint, body.model)
        tokens = await while_connected(request.receive, _tokens(body, serving.codec))
        pieces = serving.codec.pieces(tokens) if body.return_token_strs else None
        return json_response(TokenizeResponse(len(tokens), serving.context_tokens, tokens, pieces))

    @router.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        endpoint.check_key(request)
        body = await endpoint.read(request, DetokenizeRequest)
        serving = _serving(endpoint, body.model)
        _check_ids(body.tokens, serving.model.vocab_size)
        text = await while_connected(request.receive, serving.codec.decode_aside(body.tokens))
        return json_response(DetokenizeResponse(text))

    return router


def _serving(endpoint: Endpoint, model: str | None) -> Serving:
    """Return what serves that model; adapters have the same tokenizer."""
    endpoint.adapter(model)
    return endpoint.service.serving()


async def _tokens(body: TokenizeRequest, codec: Codec) -> list[int]:
    if body.prompt is not None:
        with_specials = body.add_special_tokens is not False
        return await codec.encode_text(body.prompt, add_special_tokens=with_specials)
    variables = dict(body.chat_template_kwargs or {})
    if body.add_generation_prompt is not None:
        variables["add_generation_prompt"] = body.add_generation_prompt
    return await codec.encode_chat(
        [message.as_template_input() for message in body.messages or ()],
        [tool.as_template_input() for tool in body.tools] if body.tools else None,
        variables,
    )


def _check_ids(token_ids: list[int], vocab_size: int) -> None:
    wrong = next((each for each in token_ids if each >= vocab_size), None)
    if wrong is not None:
        message = f"tokens: token id {wrong} is outside the vocabulary of {vocab_size} tokens"
        raise InvalidRequest(message, param="tokens")
