"""Which steps a profile measures: sizes of the decode batch by context by prompt tokens. Pure.

Every size beside no prompt tokens, some beside each number of them, and both with short contexts
and with long ones: a fit needs each term of the step model excited by itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from paceline_engine.core.graph_sizes import decode_sizes
from paceline_wire.limits import Capacity

_SHORT_CONTEXT = 32  # tokens
_LONG_CONTEXT = 2048
_CLEARLY = 4  # times the short one: less tells nothing of what context costs
_LEAST_PREFILL = 16  # tokens
_PREFILL_GROWTH = 4
_BESIDE_PROMPTS = (0, 1, 8, 64)
"""Decodes that run beside prompts."""


@dataclass(frozen=True, slots=True)
class CostPoint:
    """One step: decodes that are alike, and prompts that are cut from one length."""

    decode: int
    context_each: int
    """Tokens that each decode sees, itself included."""
    prefill: int
    prompt_tokens: int
    """Of `prefill`, the tokens of one prompt; the last prompt may be shorter."""
    prefill_context: int = 0
    """Tokens of each prompt that are computed already."""

    @property
    def tokens(self) -> int:
        """T of the step model."""
        return self.decode + self.prefill

    @property
    def context(self) -> int:
        """C of the step model."""
        return self.decode * self.context_each

    @property
    def attention(self) -> int:
        """A of the step model."""
        chunks = self.chunks
        return int(sum(chunk * (self.prefill_context + chunk / 2) for chunk in chunks))

    @property
    def chunks(self) -> tuple[int, ...]:
        """Tokens of each prompt in the step."""
        if not self.prefill:
            return ()
        whole, rest = divmod(self.prefill, self.prompt_tokens)
        return (self.prompt_tokens,) * whole + ((rest,) if rest else ())

    def num_blocks(self, block_size: int) -> int:
        """KV blocks that it writes to and reads from."""
        decodes = self.decode * -(-self.context_each // block_size)
        return decodes + sum(
            -(-(self.prefill_context + chunk) // block_size) for chunk in self.chunks
        )


def cost_points(
    capacity: Capacity, expected_ms: Callable[[CostPoint], float]
) -> tuple[CostPoint, ...]:
    """Steps within the capacity, each once, those expected to be short first."""
    fitting = (point for point in _wanted(capacity) if _fits(point, capacity))
    return tuple(sorted(dict.fromkeys(fitting), key=expected_ms))


def _wanted(capacity: Capacity) -> Iterator[CostPoint]:
    longest = min(_LONG_CONTEXT, capacity.max_model_len)
    short = min(_SHORT_CONTEXT, longest)
    sizes = _thinned(capacity.max_batch_size)
    prefills = _prefills(capacity.max_token_budget)
    for decode in sizes:
        yield CostPoint(decode, short, 0, 0)
        each = min(longest, capacity.num_blocks // decode * capacity.block_size)
        if each >= _CLEARLY * short:
            yield CostPoint(decode, each, 0, 0)
    for prefill in prefills:
        chunk = min(prefill, longest)
        for decode in (size for size in _BESIDE_PROMPTS if size <= sizes[-1]):
            yield CostPoint(decode, short if decode else 0, prefill, chunk)
        before = longest - chunk
        if before >= chunk:
            yield CostPoint(1, short, prefill, chunk, before)


def _fits(point: CostPoint, capacity: Capacity) -> bool:
    rows = point.decode + len(point.chunks)
    return (
        rows <= capacity.max_batch_size
        and point.tokens <= capacity.max_token_budget
        and point.num_blocks(capacity.block_size) <= capacity.num_blocks
    )


def _thinned(max_batch_size: int) -> list[int]:
    """Of the captured sizes the powers of two, and the largest: between them costs hardly bend."""
    sizes = decode_sizes(max_batch_size)
    return [size for size in sizes if size & (size - 1) == 0 or size == max_batch_size]


def _prefills(max_token_budget: int) -> list[int]:
    prefills = []
    prefill = _LEAST_PREFILL
    while prefill < max_token_budget:
        prefills.append(prefill)
        prefill *= _PREFILL_GROWTH
    return [*prefills, max_token_budget]
