"""What one request is told after a step."""

from paceline_engine.core.request import Request
from paceline_engine.errors import BadConstraint, RequestError
from paceline_wire import Output


def newest(request: Request) -> Output:
    """Tell what the step that was settled last gave it."""
    token_ids = request.token_ids[-request.num_newest :]
    is_first = request.num_output_tokens == request.num_newest
    if request.is_plain and not is_first:  # nearly every output of every step
        return Output(request.id, token_ids, request.finish)
    likelihoods = [] if request.likelihood is None else [request.likelihood]
    if not is_first:
        return Output(request.id, token_ids, request.finish, likelihoods=likelihoods)
    return Output(
        request.id,
        token_ids,
        request.finish,
        cached_tokens=request.num_cached,
        scheduled_at=request.scheduled_at,
        likelihoods=likelihoods,
        prompt_likelihoods=request.prompt_likelihoods,
        embedding=request.embedding,
    )


def refused(request_id: str, reason: str) -> Output:
    """Tell that it can never run."""
    return Output(request_id, [], finish="error", error=reason, is_invalid=True)


def failed(error: RequestError) -> Output:
    """Tell why it cannot go on."""
    is_invalid = isinstance(error, BadConstraint)
    return Output(error.request_id, [], finish="error", error=error.message, is_invalid=is_invalid)
