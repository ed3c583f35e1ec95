"""Every variant of every kernel, launched before the first request: none is compiled by a step.

Triton compiles a variant at its first launch and takes a third of a second or more, while every
stream waits. So steps of every kind run here, with every option that a request may have, and
attention runs for every shape of a step.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from paceline_engine.attention.prefill.prompts import PromptChunk
from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.constraint import TokenBitmask
from paceline_engine.core.graph_sizes import powers_of_two
from paceline_engine.core.request import Request, State
from paceline_engine.runner.model_runner import ModelRunner
from paceline_kernels.compiled import Compilations
from paceline_wire import Sampling
from paceline_wire.limits import Capacity

_MOST_TOKENS = 256
"""The most tokens of a prompt step here: beyond them no kernel has another variant."""
_PLAIN = Sampling(max_tokens=2, temperature=1.0, top_p=0.9)
_EVERYTHING = Sampling(
    max_tokens=2,
    temperature=1.0,
    top_p=0.9,
    min_tokens=2,
    presence_penalty=0.5,
    frequency_penalty=0.5,
    repetition_penalty=1.1,
    logit_bias={0: 1.0},
    logprobs=1,
    prompt_logprobs=1,
)

_log = logging.getLogger(__name__)


def launch_every_variant(
    runner: ModelRunner,
    capacity: Capacity,
    *,
    is_first: bool = True,
    has_adapters: bool = False,
    draft: ModelRunner | None = None,
    clock: Callable[[], float],
    is_again: bool = False,
) -> None:
    """Compile, or load from Triton's cache, all that steps will launch; say what that took.

    Rows and blocks are free after. A rank that is not the first runs the first one's steps.
    `is_again`: a second run over another cache, which logs what the first one left uncompiled.
    """
    started = clock()
    compilations = Compilations()
    with compilations.counted():
        runner.launch_attention(capacity)
        if is_first:
            _run(runner, every_step(capacity, slots=(None, 0) if has_adapters else (None,)))
        if draft is not None:
            draft.launch_attention(capacity)
            _run(draft, plain_steps(capacity))
    if is_again and not compilations.num_variants:
        return
    _log.info(
        "%d variants of %d kernels compiled, or taken from Triton's cache, in %.1f s",
        compilations.num_variants,
        compilations.num_kernels,
        clock() - started,
    )


def launch_widest(runner: ModelRunner, capacity: Capacity, *, is_draft: bool = False) -> None:
    """Run the steps that take the most memory; a draft model's rows ask for nothing."""
    _run(runner, widest_steps(capacity, _PLAIN if is_draft else _EVERYTHING))
    _run(runner, later_steps(runner.largest_gathers(capacity)))


def _run(runner: ModelRunner, steps: Iterator[Batch]) -> None:
    for batch in steps:
        runner.launch(batch).result()
        for chunk in batch.chunks:
            chunk.request.state = State.FINISHED  # of a request that is gone, nothing is kept


def every_step(capacity: Capacity, *, slots: Sequence[int | None] = (None,)) -> Iterator[Batch]:
    """Make steps of every kind; `slots` of adapters: None is the model as it is."""
    for slot in slots:
        yield from plain_steps(capacity, slot)
    rooms = chain.from_iterable(_steps_with_options(rows) for rows in (1, 2))
    yield from (batch for batch in rooms if _fits(batch, capacity))


def plain_steps(capacity: Capacity, slot: int | None = None) -> Iterator[Batch]:
    """Make steps of prompts, of decodes, of both and of drafts, of as many tokens as matter."""
    longest = max(capacity.max_model_len - 1, 1)  # the token that follows needs a place
    for tokens in powers_of_two(min(_MOST_TOKENS, capacity.max_token_budget)):
        whole, rest = divmod(tokens, longest)
        lengths = [longest] * whole + [rest] * bool(rest)
        if len(lengths) <= capacity.max_batch_size:
            yield _batch(prompts=[_request(row, n, slot) for row, n in enumerate(lengths)])
    for rows in powers_of_two(capacity.max_batch_size):
        yield _batch(decodes=[_request(row, 1, slot) for row in range(rows)])
    mixed = _batch(decodes=[_request(0, 1, slot)], prompts=[_request(1, 1, slot)])
    drafted = _batch(drafted=[_request(0, 1, slot)])
    yield from (batch for batch in (mixed, drafted) if _fits(batch, capacity))


def widest_steps(capacity: Capacity, asked: Sampling = _EVERYTHING) -> Iterator[Batch]:
    """Make steps of all tokens and of all rows, of which each asks for what it may.

    The token budget in as few prompts as may be, and in as many, then every row's decode.
    """
    longest = max(capacity.max_model_len - 1, 1)
    budget, most_rows = capacity.max_token_budget, capacity.max_batch_size
    fewest = min(-(-budget // longest), most_rows)
    for rows in dict.fromkeys((fewest, min(budget, most_rows))):
        whole, more = divmod(budget, rows)
        lengths = [min(longest, whole + (row < more)) for row in range(rows)]
        yield _batch(prompts=[_asking(row, length, asked) for row, length in enumerate(lengths)])
    yield _batch(decodes=[_asking(row, 1, asked) for row in range(most_rows)])


def later_steps(chunks: Iterable[PromptChunk]) -> Iterator[Batch]:
    """Make a step of each chunk alone, behind its context."""
    for tokens, context in chunks:
        request = _request(0, context, None)
        chunk = ScheduledChunk(request, context - tokens, tokens, samples=True, is_decode=False)
        yield Batch((chunk,), 0)


def _asking(row: int, num_tokens: int, sampling: Sampling) -> Request:
    request = _request(row, num_tokens, None, sampling)
    if sampling is not _PLAIN:
        request.constraint = _Anything()
        request.is_plain = False
    return request


def _steps_with_options(rows: int) -> Iterator[Batch]:
    """Make steps in which the first of the rows asks for everything, or for what the model made."""
    plain = [_request(row, 2, None) for row in range(1, rows)]
    asking = _request(0, 2, None, _EVERYTHING)
    asking.constraint = _Anything()
    asking.is_plain = False
    yield _batch(prompts=[asking, *plain])
    yield _batch(decodes=[asking, *plain])
    for pooling in ("mean", "last"):
        sampling = Sampling(max_tokens=1, pooling=pooling)
        yield _batch(prompts=[_request(0, 2, None, sampling), *plain])


def _fits(batch: Batch, capacity: Capacity) -> bool:
    """Tell whether a step of requests of a few tokens may be run."""
    has_room = len(batch.chunks) <= capacity.max_batch_size
    longest = max(chunk.start + chunk.count for chunk in batch.chunks)
    is_short = batch.num_tokens <= capacity.max_token_budget and longest < capacity.max_model_len
    return has_room and is_short


def _batch(
    *,
    decodes: Sequence[Request] = (),
    drafted: Sequence[Request] = (),
    prompts: Sequence[Request] = (),
) -> Batch:
    """Compute the last token of those that decode, and of the others all tokens."""
    of_decodes = [
        ScheduledChunk(each, len(each.token_ids) - 1, 1, samples=True, is_decode=True)
        for each in decodes
    ]
    of_drafted = [
        ScheduledChunk(each, len(each.token_ids) - 1, 2, samples=True, is_decode=True, draft=(0,))
        for each in drafted
    ]
    of_prompts = [
        ScheduledChunk(each, 0, len(each.token_ids), samples=True, is_decode=False)
        for each in prompts
    ]
    return Batch((*of_decodes, *of_drafted, *of_prompts), len(decodes), len(drafted))


def _request(row: int, num_tokens: int, slot: int | None, sampling: Sampling = _PLAIN) -> Request:
    """Make a dummy request of `num_tokens`: all share the first block, which they overwrite."""
    return Request(
        id=f"warm-up {row}",
        token_ids=[0] * num_tokens,
        num_prompt_tokens=num_tokens,
        sampling=sampling,
        adapter_slot=slot,
        row=row,
        block_ids=[0] * (num_tokens + 1),
    )


class _Anything:
    """A constraint that allows every token. Implements `Constraint`."""

    def fill_bitmask(self, output_ids: Sequence[int], bitmask: TokenBitmask) -> None:  # noqa: ARG002 - the port's
        bitmask.fill(np.uint32(2**32 - 1))
