"""By what requests are put in order, and how far one may be overtaken."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from order.lengths import Known, LengthModel
from paceline_sidecar.admission.turns import turn_at

_MEMORY_BINDS = 0.9
"""Used share of the KV blocks from which on requests wait for memory."""


@dataclass(frozen=True, slots=True)
class PodPace:
    """How fast a pod works off what waits."""

    tokens_per_s: float | None
    """Prompt tokens, while some wait; None where too few have been seen."""
    step_s: float
    """A step's mean time."""
    kv_tokens: int
    """Tokens that its KV blocks hold."""
    kv_used: float
    """Share of them that is held."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that arrives, the pod then, and what only an oracle knows."""

    known: Known
    pod: PodPace
    lengths: LengthModel
    output: int
    """Its true output tokens."""

    @property
    def expected_output(self) -> float:
        """Return the predicted mean output; 0 before anything was learned."""
        lengths = self.lengths.predict(self.known)
        return 0.0 if lengths is None else lengths.mean


Cost = Callable[[Candidate], float]
"""Prompt tokens that a request counts for."""


def _prompt(request: Candidate) -> float:
    return request.known.prompt_tokens


def _predicted_total(request: Candidate) -> float:
    return request.known.prompt_tokens + request.expected_output


def _true_total(request: Candidate) -> float:
    return request.known.prompt_tokens + request.output


def _predicted_binding(request: Candidate) -> float:
    return _with_memory(request, request.expected_output)


def _true_binding(request: Candidate) -> float:
    return _with_memory(request, request.output)


def _with_memory(request: Candidate, output: float) -> float:
    """Add the memory's time where it is full: prompt and half of the output, while it decodes."""
    prompt, pod = request.known.prompt_tokens, request.pod
    if pod.kv_used < _MEMORY_BINDS:
        return prompt
    memory_s = output * pod.step_s * (prompt + output / 2) / pod.kv_tokens
    return prompt + memory_s * (pod.tokens_per_s or 0.0)


@dataclass(frozen=True, slots=True)
class Order:
    """One way to order those that wait."""

    name: str
    cost: Cost = _prompt
    times_its_own: float = 4.0
    """Ageing: it lets pass what comes within so many of its own service times (k)."""
    patience: float = 1.0
    """And nothing that comes later than so many TTFT targets."""

    def turn_at(self, arrived_at: float, request: Candidate, ttft_s: float) -> float:
        """Return a request's turn, by the formula of the sidecar."""
        if not self.times_its_own:
            return arrived_at
        tokens = self.cost(request) * self.times_its_own / 4.0
        return turn_at(
            arrived_at,
            tokens=round(tokens),
            rate=request.pod.tokens_per_s,
            patience_s=self.patience * ttft_s,
        )


ARRIVAL = Order("arrival", times_its_own=0.0)
ORDERS = (
    ARRIVAL,
    Order("prompt, k=1", times_its_own=1.0),
    Order("prompt, k=4"),
    Order("prompt, no ageing", times_its_own=1e6, patience=math.inf),
    Order("predicted total, k=4", _predicted_total),
    Order("true total, k=4", _true_total),
    Order("true total, no ageing", _true_total, 1e6, math.inf),
    Order("predicted, by what binds, k=4", _predicted_binding),
    Order("true, by what binds, k=4", _true_binding),
)
BUILT = "prompt, k=4"
"""What `admission.order: ShortestFirst` does."""
PREDICTED = "predicted total, k=4"
