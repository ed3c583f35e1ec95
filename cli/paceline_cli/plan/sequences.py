"""How many sequences fit with paged memory and how many preallocated, and what last blocks waste.

A sequence of L tokens holds whole blocks of b tokens, so (-L) mod b of its last block is unused.
It grows by a token a step from its prompt p to p + o, which makes the mean over its steps

    (W(p + o) - W(p)) / o,   W(n) = sum of (-L) mod b over L = 1..n
"""

from collections.abc import Iterable
from dataclasses import dataclass

from paceline_cli.plan.kv_memory import Line
from paceline_cli.traffic.traces import TracedRequest


@dataclass(frozen=True, slots=True)
class LastBlocks:
    """The room in last blocks that no token fills, of the mean running sequence."""

    block_tokens: int
    unused_tokens: float
    held_tokens: float
    """What its blocks have room for, that included."""

    @property
    def share(self) -> float:
        """Of the held room."""
        return self.unused_tokens / self.held_tokens


def last_blocks(requests: Iterable[TracedRequest], block_tokens: int) -> LastBlocks:
    """Average over the decoding steps of a trace; each request has an output token at least."""
    unused = tokens = steps = 0
    for request in requests:
        ends = request.prompt + request.output
        unused += _unused(ends, block_tokens) - _unused(request.prompt, block_tokens)
        tokens += request.output * (2 * request.prompt + request.output + 1) // 2
        steps += request.output
    return LastBlocks(block_tokens, unused / steps, (unused + tokens) / steps)


def preallocated_batch(kv_tokens: int, longest: int, block_tokens: int) -> int:
    """Count the sequences that fit where each has room for the longest one from its start."""
    return kv_tokens // (-(-longest // block_tokens) * block_tokens)


def sequence_lines(
    *, kv_tokens: int, longest: int, preallocated: int, last: LastBlocks
) -> tuple[Line, Line]:
    """Show both as lines of the memory's arithmetic."""
    return (
        Line(
            f"{preallocated:,} preallocated",
            f"{kv_tokens:,} / {longest:,} tokens of the longest sequence",
            "instead, without pages",
        ),
        Line(
            "last blocks",
            f"{last.unused_tokens:.1f} of {last.block_tokens} tokens unused, of"
            f" {last.held_tokens:,.0f} that a running sequence holds",
            f"{last.share:.1%} wasted",
        ),
    )


def _unused(longest: int, block_tokens: int) -> int:
    """Compute W: the sum of (-L) mod b over L from 1 on."""
    whole, rest = divmod(longest, block_tokens)
    of_a_block = block_tokens * (block_tokens - 1) // 2
    return whole * of_a_block + rest * block_tokens - rest * (rest + 1) // 2
