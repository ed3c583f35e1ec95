"""Which steps the profile at start times: decodes by context by prompt tokens. Pure.

Each batch size runs alone, and some run beside each number of prompt tokens, with short contexts
and with long ones: a fit needs each term of the step model excited by itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from paceline_engine.core.graph_sizes import decode_sizes
from paceline_wire import StepFeatures
from paceline_wire.limits import Capacity
from paceline_wire.step_cost import chunk_attention

_SHORT_CONTEXT = 32  # tokens
_LONG_CONTEXT = 2048
_CLEARLY = 4  # times the short one: less would not show what context costs
_LEAST_PREFILL = 16  # tokens
_PREFILL_GROWTH = 4
_BESIDE_PROMPTS = (0, 1, 8, 64)
"""Decodes that run beside prompts."""


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """A step to be timed: decodes that are alike, and prompts that are cut from one length."""

    decode: int
    context_each: int
    """Tokens that each decode sees, itself included."""
    prefill: int
    prompt_tokens: int
    """How many tokens of `prefill` are one prompt's; the last prompt may be shorter."""
    prefill_context: int = 0
    """Tokens of each prompt that are computed already."""

    @property
    def features(self) -> StepFeatures:
        """What the step model prices it by."""
        pairs = sum(chunk_attention(chunk, self.prefill_context) for chunk in self.chunks)
        context = self.decode * self.context_each
        return StepFeatures(self.decode, self.prefill, context, int(pairs))

    @property
    def chunks(self) -> tuple[int, ...]:
        """Tokens of each prompt in the step."""
        if not self.prefill:
            return ()
        whole, rest = divmod(self.prefill, self.prompt_tokens)
        return (self.prompt_tokens,) * whole + ((rest,) if rest else ())

    def num_blocks(self, block_size: int) -> int:
        """KV blocks that the step reads and writes."""
        decodes = self.decode * -(-self.context_each // block_size)
        return decodes + sum(
            -(-(self.prefill_context + chunk) // block_size) for chunk in self.chunks
        )


def probe_steps(
    capacity: Capacity, expected_ms: Callable[[ProbeStep], float]
) -> tuple[ProbeStep, ...]:
    """Steps within the capacity, each once, those expected to be short first."""
    fitting = (step for step in _wanted(capacity) if _fits(step, capacity))
    return tuple(sorted(dict.fromkeys(fitting), key=expected_ms))


def _wanted(capacity: Capacity) -> Iterator[ProbeStep]:
    longest = min(_LONG_CONTEXT, capacity.max_model_len)
    short = min(_SHORT_CONTEXT, longest)
    sizes = _thinned(capacity.max_batch_size)
    prefills = _prefills(capacity.max_token_budget)
    for decode in sizes:
        yield ProbeStep(decode, short, 0, 0)
        each = min(longest, capacity.num_blocks // decode * capacity.block_size)
        if each >= _CLEARLY * short:
            yield ProbeStep(decode, each, 0, 0)
    for prefill in prefills:
        chunk = min(prefill, longest)
        for decode in (size for size in _BESIDE_PROMPTS if size <= sizes[-1]):
            yield ProbeStep(decode, short if decode else 0, prefill, chunk)
        before = longest - chunk
        if before >= chunk:
            yield ProbeStep(1, short, prefill, chunk, before)


def _fits(step: ProbeStep, capacity: Capacity) -> bool:
    rows = step.decode + len(step.chunks)
    return (
        rows <= capacity.max_batch_size
        and step.decode + step.prefill <= capacity.max_token_budget
        and step.num_blocks(capacity.block_size) <= capacity.num_blocks
    )


def _thinned(max_batch_size: int) -> list[int]:
    """Keep powers of two and the largest of the captured sizes: costs hardly bend between them."""
    sizes = decode_sizes(max_batch_size)
    return [size for size in sizes if size & (size - 1) == 0 or size == max_batch_size]


def _prefills(max_token_budget: int) -> list[int]:
    prefills = []
    prefill = _LEAST_PREFILL
    while prefill < max_token_budget:
        prefills.append(prefill)
        prefill *= _PREFILL_GROWTH
    return [*prefills, max_token_budget]
