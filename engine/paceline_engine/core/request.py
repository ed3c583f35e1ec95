"""One request on its way through the engine."""

from dataclasses import dataclass, field
from enum import Enum
from itertools import count

from paceline_engine.core.block import BlockHash
from paceline_engine.core.constraint import Constraint, Guide
from paceline_wire import FinishReason, Sampling, TokenLogprobs
from paceline_wire.limits import Lane

_generations = count(1)


class State(Enum):
    """Where a request is. Only a `RUNNING` one holds a row and KV blocks."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False, weakref_slot=True)
class Request:
    """Mutable, owned by the scheduler; the runner only reads it."""

    id: str
    token_ids: list[int]
    """Prompt, then every token generated so far."""
    num_prompt_tokens: int
    sampling: Sampling
    lane: Lane = "interactive"
    arrived_at: float = 0.0
    deadline_at: float | None = None
    turn_at: float | None = None
    """It is queued before waiting requests of its lane with a later turn; None: behind all."""
    cache_salt: str = ""
    adapter_slot: int | None = None
    """Where the weights of its LoRA adapter lie, if it has one."""
    number: int = 0
    """Order of arrival in this engine."""

    state: State = State.WAITING
    num_computed: int = 0
    """Tokens whose keys and values lie in the cache, or will once the steps in flight have run."""
    num_in_flight: int = 0
    """Tokens that steps in flight will give it: not known yet, and not in `token_ids`."""
    num_cached: int = 0
    """Prompt tokens that were taken from the prefix cache."""
    row: int | None = None
    """The row held while running, in [0, capacity.max_batch_size)."""
    generation: int = field(default_factory=_generations.__next__)
    """A new number each time it gets a row, so a runner sees that a row has a new owner."""
    block_ids: list[int] = field(default_factory=list)
    """KV blocks in order; token i lies in `block_ids[i // block_size]`, offset `i % block_size`."""
    block_hashes: list[BlockHash] = field(default_factory=list)
    """Hashes of the full blocks of `token_ids`, for prefix sharing; extended when needed."""
    num_preemptions: int = 0
    """How often it was preempted."""
    swap_slots: list[int] = field(default_factory=list)
    """Slots of host memory that hold its first blocks while it waits, in order."""
    num_swapped: int = 0
    """Tokens whose keys and values lie there."""
    is_aged: bool = False
    """The other lane had to wait for its admission: it is not displaced any more."""
    num_newest: int = 1
    """Tokens that the last step gave it: more than one where draft tokens were accepted."""
    scheduled_at: float | None = None
    first_token_at: float | None = None
    finish: FinishReason | None = None

    constraint: Constraint | None = None
    """The form that the output must have, if one was asked for."""
    is_plain: bool = field(init=False)
    """It samples by temperature, top-k, top-p and min-p alone: no penalty, mask or logprobs."""
    guide: Guide | None = field(init=False)
    """The constraint, where it can be followed along a draft and nothing else is asked for."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Logprobs of `token_ids[1:]` as far as settled, up to the prompt's end, where asked for."""

    def __post_init__(self) -> None:
        """Derive once what every step would have to ask."""
        only_draws = _is_plain(self.sampling)
        self.is_plain = self.constraint is None and only_draws
        constraint = self.constraint
        self.guide = constraint if only_draws and isinstance(constraint, Guide) else None
        if self.sampling.prompt_logprobs is not None or self.sampling.pooling == "mean":
            # A prefix that was found would not be computed, and so neither scored nor pooled.
            self.cache_salt = f"{self.id} {self.cache_salt}"

    def enter(self, row: int) -> None:
        """Take a row with a new generation, and become `RUNNING`."""
        self.state = State.RUNNING
        self.row, self.generation = row, next(_generations)

    @property
    def num_remaining(self) -> int:
        """Known tokens whose keys and values are not computed yet."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens


def _is_plain(sampling: Sampling) -> bool:
    return (
        sampling.min_tokens == 0
        and sampling.presence_penalty == 0
        and sampling.frequency_penalty == 0
        and sampling.repetition_penalty == 1
        and not sampling.logit_bias
        and sampling.logprobs is None
        and sampling.prompt_logprobs is None
    )
