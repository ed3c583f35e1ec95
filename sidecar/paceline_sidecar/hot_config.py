"""What the operator changes without a restart and the sidecar itself obeys."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from paceline_sidecar.admission.turns import OrderKind
from paceline_wire.limits import Lane

FIRST_TOKEN_SHARE = 0.25
"""Of an end-to-end target, for the first token: as the tuner plans (`end_to_end.py`)."""

_SURE_SHARE = 0.9
"""Share of an end-to-end target to plan with where the longest answer's time is predicted."""


@dataclass(frozen=True, slots=True)
class PromptClass:
    """The first-token target of prompts of some lengths."""

    up_to: int | None
    """Tokens of the longest prompts in it; None of the last class, which has no end."""
    ttft_p99_ms: float

    @property
    def label(self) -> str:
        """Name the class as Prometheus names buckets."""
        return "+Inf" if self.up_to is None else str(self.up_to)


@dataclass(frozen=True, slots=True)
class Sla:
    """Targets in milliseconds; None where none is declared."""

    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None
    itl_p99_ms: float | None = None
    objective: float = 0.99
    """Share of the offered requests that must meet every target."""
    e2e_p99_ms: float | None = None
    """From a request's arrival to its last token."""

    ttft_by_prompt_tokens: tuple[PromptClass, ...] = ()
    """By prompt length, the shortest first; then `ttft_p99_ms` is the last one's, the loosest."""

    def class_of(self, prompt_tokens: int) -> PromptClass | None:
        """Return the class of a prompt, cached tokens counted; None where there are none."""
        fits = (
            each
            for each in self.ttft_by_prompt_tokens
            if each.up_to is None or prompt_tokens <= each.up_to
        )
        return next(fits, None)

    def ttft_ms(self, prompt_tokens: int) -> float | None:
        """Return the first-token target of a prompt; None where none is declared."""
        mine = self.class_of(prompt_tokens)
        return self.ttft_p99_ms if mine is None else mine.ttft_p99_ms

    def first_token_ms(self, prompt_tokens: int, answer_ms: float | None = None) -> float | None:
        """Return the latest first token that is of use; None where no target bounds it.

        `answer_ms` is what the longest answer that was asked for takes at the present pace: one
        that ends in time all the same may begin later. None where that is not known.
        """
        target_ms = self.ttft_ms(prompt_tokens)
        if self.e2e_p99_ms is None:
            return target_ms
        bound_ms = self.e2e_p99_ms * FIRST_TOKEN_SHARE
        if answer_ms is not None:
            bound_ms = max(bound_ms, self.e2e_p99_ms * _SURE_SHARE - answer_ms)
        return bound_ms if target_ms is None else min(bound_ms, target_ms)


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What the requests of one key may do; None sets no bound."""

    weight: float = 1.0
    """Its share of the engine, beside those of the other keys that wait."""
    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and output tokens."""


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """The bounds of the queue, and what is refused."""

    max_queued_requests: int = 1024
    max_queued_tokens: int | None = None
    reject_at: float = 0.8
    """Refuse from this share of the two caps on."""
    request_timeout_s: float = 60.0
    """A request, its waiting included, may take this long."""
    shed_hopeless: bool = True
    """Refuse requests that can no longer meet the TTFT target."""
    order: OrderKind = "Fifo"
    """The order in which a lane's waiting requests are prefilled."""
    max_items_per_request: int = 1024
    """Prompts, choices or pairs of one request."""
    max_prompt_tokens: int | None = None
    """Of each prompt; None leaves it to the model's context."""
    max_output_tokens: int | None = None
    """Of each choice: asking for more is refused, asking for none gets as many."""
    per_key: KeyLimits = KeyLimits()
    """Of each key on its own."""
    keys: Mapping[str, KeyLimits] = field(default_factory=dict)
    """Of keys by name: what is None here is as in `per_key`."""

    def limits_of(self, name: str) -> KeyLimits:
        """Return the limits of the key of that name."""
        own = self.keys.get(name) if name else None
        if own is None:
            return self.per_key
        bounds = [each.name for each in fields(KeyLimits) if each.name != "weight"]
        unset = {each: getattr(self.per_key, each) for each in bounds if getattr(own, each) is None}
        return replace(own, **unset)


@dataclass(frozen=True, slots=True)
class HotConfig:
    """Swapped whole with every accepted change."""

    sla: Sla = Sla()
    admission: AdmissionPolicy = AdmissionPolicy()
    config_hash: str = ""
    batch_sla: Sla | None = None
    """The batch lane's targets; None judges it by `sla` too."""

    @property
    def is_first_come(self) -> bool:
        """Whether waiting requests of a lane are served first come, first served."""
        has_classes = any(
            sla is not None and sla.ttft_by_prompt_tokens for sla in (self.sla, self.batch_sla)
        )
        return self.admission.order == "Fifo" and not has_classes

    def sla_of(self, lane: Lane) -> Sla:
        """Return the targets of one lane's requests."""
        if lane == "batch" and self.batch_sla is not None:
            return self.batch_sla
        return self.sla
