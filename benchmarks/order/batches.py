"""What predicted lengths do for static batches, whose rows are padded to their longest output."""

from collections.abc import Callable
from dataclasses import dataclass

from order.cases import Case
from order.lengths import Known, LengthModel

_BATCH, _WAITING = 32, 256
_REQUESTS_RPS, _DURATION_S = 20.0, 240.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    known: Known
    output: int


Alike = Callable[[_Waiting, LengthModel], object]
"""Requests for which it is equal may share a batch."""


def _any(_request: _Waiting, _model: LengthModel) -> object:
    return None


def _prompt(request: _Waiting, _model: LengthModel) -> object:
    return (request.known.prompt_tokens - 1).bit_length()


def _predicted(request: _Waiting, model: LengthModel) -> object:
    lengths = model.predict(request.known)
    return None if lengths is None else round(lengths.quantile(0.5)).bit_length()


def _true(request: _Waiting, _model: LengthModel) -> object:
    return request.output.bit_length()


GROUPINGS: dict[str, Alike] = {
    "as they came": _any,
    "alike prompts (`Dynamic`)": _prompt,
    "alike predicted outputs": _predicted,
    "alike true outputs": _true,
}


def useful_share(case: Case, alike: Alike, seed: int) -> float:
    """Return the share of a batch's rows and steps that gives a token, with a full queue."""
    requests, known = case.draw(seed, _REQUESTS_RPS, _DURATION_S)
    coming = [
        _Waiting(each, int(output)) for each, output in zip(known, requests.output, strict=True)
    ]
    model, useful, computed = LengthModel(), 0, 0
    waiting, coming = coming[:_WAITING], coming[_WAITING:]
    while coming:
        kind = alike(waiting[0], model)
        batch = [request for request in waiting if alike(request, model) == kind][:_BATCH]
        useful += sum(request.output for request in batch)
        computed += len(batch) * max(request.output for request in batch)
        for request in batch:
            model.learn(request.known, request.output)
        taken = set(map(id, batch))
        waiting = [request for request in waiting if id(request) not in taken]
        waiting, coming = waiting + coming[: len(batch)], coming[len(batch) :]
    return useful / computed
