"""A back end that nobody has run before is found wrong before it serves anybody."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline_engine.attention.prefill import trial
from paceline_engine.attention.prefill.attention import Cache, Chunk, Prompts, RefusedError, Scores
from paceline_engine.attention.prefill.guarded import GuardedPrefill
from paceline_engine.attention.prefill.scratch import Scratch, Step
from paceline_engine.attention.prefill.trial import Fault, fault_of, tolerance, trial_steps
from paceline_engine.errors import BadSettings
from paceline_testing.prefill import (
    KernelDouble,
    PrefillDouble,
    a_cache,
    attended,
    prompts_of,
    some_queries,
)

OURS = KernelDouble()
WINDOW = 64
SCRATCH = Scratch(a_cache(), num_q_heads=4)
Attend = Callable[[Tensor, Cache, Prompts, Scores], Tensor]


class Wrong(PrefillDouble):
    """Computes something else."""

    def __init__(self, attend: Attend) -> None:
        super().__init__("wrong")
        self.attend = attend

    def __call__(self, q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
        return self.attend(q, cache, prompts, scores)


def found(other: PrefillDouble, layer: Scores | None = None, scratch: Scratch = SCRATCH) -> Any:
    layer = layer or Scores(0.25)
    return fault_of(other, OURS, trial_steps(scratch, other, [layer.window]), layer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("window", [None, WINDOW])
def test_one_that_rounds_otherwise_is_right(dtype: torch.dtype, window: int | None) -> None:
    """The output of float64, rounded once: as near to ours as another can be expected to come."""

    def exactly(q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
        wide = Cache(cache.keys.double(), cache.values.double(), None)
        return attended(q.double(), wide, prompts, scores).to(dtype)

    scratch = Scratch(a_cache(dtype=dtype), num_q_heads=4)

    assert found(Wrong(exactly), Scores(0.25, window, 30.0), scratch) is None


def with_table(prompts: Prompts, table: Tensor) -> Prompts:
    return Prompts(
        prompts.chunks, table, prompts.cu_seqlens, prompts.context_lens, prompts.slots, 4
    )


def of_context(prompts: Prompts, context_lens: Tensor) -> Prompts:
    return Prompts(
        prompts.chunks, prompts.block_table, prompts.cu_seqlens, context_lens, prompts.slots, 4
    )


def forgets_the_first_key(q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
    keys = cache.keys.clone()
    keys[prompts.block_table[:, 0].long(), 0] = 0
    return attended(q, Cache(keys, cache.values, None), prompts, scores)


def mistakes_each_scale(q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
    return attended(q, cache, prompts, Scores(1.02 * scores.scale, scores.window, scores.softcap))


def swaps_two_pages(q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
    table = prompts.block_table.clone()
    table[:, [-2, -1]] = table[:, [-1, -2]]
    return attended(q, cache, with_table(prompts, table), scores)


def is_aligned_at_the_top(q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
    tokens = prompts.cu_seqlens.diff()
    return attended(q, cache, of_context(prompts, tokens.to(torch.int32)), scores)


def has_a_window_of_one_more(q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
    window = scores.window and scores.window + 1
    return attended(q, cache, prompts, Scores(scores.scale, window, scores.softcap))


def has_no_cap(q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
    return attended(q, cache, prompts, Scores(scores.scale, scores.window))


def gives_nan(q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
    out = attended(q, cache, prompts, scores)
    out[-5, 0, 0] = float("nan")
    return out


def writes_into_padding(q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
    out = attended(q, cache, prompts, scores)
    out[-1] = 1e-3
    return out


def shares_heads_otherwise(q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
    return attended(q[:, [0, 2, 1, 3]], cache, prompts, scores)[:, [0, 2, 1, 3]]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (forgets_the_first_key, "a row differs"),
        (mistakes_each_scale, "a row differs"),
        (swaps_two_pages, "a row differs"),
        (is_aligned_at_the_top, "a row differs"),
        (has_a_window_of_one_more, "a row differs"),
        (has_no_cap, "a row differs"),
        (shares_heads_otherwise, "a row differs"),
        (gives_nan, "a row differs from our kernel's by nan"),
        (writes_into_padding, "by nan of its length"),
        (lambda q, *_: q[:-1], "it raised ValueError: its output must be"),
        (lambda q, *_: q.double(), "it raised ValueError: its output must be"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_mistake_is_found(wrong: Attend, says: str, dtype: torch.dtype) -> None:
    """Each is one that a slip in what is handed over would make, and small."""
    scratch = Scratch(a_cache(dtype=dtype), num_q_heads=4)

    fault = found(Wrong(wrong), Scores(0.25, WINDOW, 30.0), scratch)

    assert fault.level == logging.WARNING
    assert says in fault.reason


def test_what_it_raises_is_told_in_a_line() -> None:
    """Our own kernel's output is not waited for."""

    def raises(*_arguments: Any) -> Tensor:
        raise TypeError("plan() got an unexpected keyword\nand so on")

    assert found(Wrong(raises)) == Fault(
        "on prompts of 1 of 1, 15 of 15, 4 of 4, 257 of 257, 100 of 100 tokens "
        "it raised TypeError: plan() got an unexpected keyword"
    )


def test_a_refusal_is_no_warning() -> None:
    """It knows itself best."""

    def refuses(*_arguments: Any) -> Tensor:
        raise RefusedError("no kernel")

    assert found(Wrong(refuses)) == Fault("no kernel", logging.INFO)


def test_a_gpu_that_is_broken_is_not_served_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an illegal access each further answer may be wrong: who is to blame is named."""

    def breaks(*_arguments: Any) -> Tensor:
        raise RuntimeError("an illegal memory access was encountered")

    def is_dead(_device: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    class OnGpu(Tensor):
        device = torch.device("cuda")

    monkeypatch.setattr(torch.cuda, "synchronize", is_dead)
    step = SCRATCH.step([Chunk(1, 1)])
    on_gpu = Step(step.q.as_subclass(OnGpu), step.cache, step.prompts)

    with pytest.raises(BadSettings, match="The prefill back end wrong left the GPU unusable"):
        fault_of(Wrong(breaks), OURS, [on_gpu], Scores(1.0))


def steps(other: PrefillDouble, *windows: int | None) -> Iterator[tuple[Chunk, ...]]:
    return (step.prompts.chunks for step in trial_steps(SCRATCH, other, windows))


def test_only_what_it_serves_is_tried() -> None:
    """A later chunk says nothing about who serves whole prompts alone."""
    for chunks in steps(PrefillDouble(laters=False)):
        assert all(chunk.is_whole for chunk in chunks)
    laters = [c for c in steps(PrefillDouble()) if not all(one.is_whole for one in c)]
    assert laters


def test_windows_are_tried_beyond_their_length() -> None:
    """Within it a window does nothing."""
    assert max(c.context for chunks in steps(PrefillDouble(), None) for c in chunks) < 1000
    assert max(c.context for chunks in steps(PrefillDouble(), None, 2000) for c in chunks) > 2000


def test_a_context_that_does_not_fit_is_not_tried() -> None:
    """A cache of 40 blocks holds no more of a real prompt either."""
    scratch = Scratch(a_cache(40), num_q_heads=4)

    tried = list(trial_steps(scratch, PrefillDouble(), [4096]))

    assert tried
    assert max(chunk.context for step in tried for chunk in step.prompts.chunks) <= 160


def test_the_scratch_is_no_larger_than_it_says() -> None:
    """Beside a full GPU each byte counts; and no cache is larger than the model's own."""
    cache = a_cache(5000)

    assert Scratch(cache, 4).num_tokens == 10_240
    assert Scratch(a_cache(40), 4).num_tokens == 160


def test_the_scratch_lays_prompts_out_as_the_engine_does() -> None:
    """Each token's slot is where the table says; no block is in two prompts."""
    step = SCRATCH.step([Chunk(3, 9), Chunk(5, 5)], padding=2)
    prompts = step.prompts

    assert step.q.shape == (10, 4, 16)
    assert prompts.slots[-2:].tolist() == [-1, -1]
    assert prompts.cu_seqlens.tolist() == [0, 3, 8]
    assert prompts.context_lens.tolist() == [9, 5]
    table = prompts.block_table
    assert len({*table[0, :3].tolist(), *table[1, :2].tolist()}) == 5
    positions = [(0, 6), (0, 7), (0, 8), *((1, i) for i in range(5))]
    assert prompts.slots[:8].tolist() == [
        int(table[row, i // 4]) * 4 + i % 4 for row, i in positions
    ]


def test_a_missing_key_among_many_is_more_than_rounding() -> None:
    """What the tolerance is made for: weights all equal, as flat as scores can be."""
    cache, prompts = a_cache(dtype=torch.bfloat16), prompts_of([(1, 300)], 1100)
    q = torch.zeros_like(some_queries(1, 4, 16, torch.bfloat16))
    without = of_context(prompts, prompts.context_lens - 1)

    seen = trial._rows_difference(
        attended(q, cache, without, Scores(1.0)), attended(q, cache, prompts, Scores(1.0))
    )

    assert float(seen.max()) > tolerance(torch.bfloat16)


def test_one_that_fails_while_it_serves_is_replaced_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """That step's tokens are ours, and every later one's; one sentence tells."""
    calls: list[int] = []

    def fails_at_last(q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("Buffer overflow in a plan\nmore")
        return attended(q, cache, prompts, scores)

    guarded = GuardedPrefill(Wrong(fails_at_last), OURS)
    step, layer = SCRATCH.step([Chunk(3, 9)]), Scores(0.25)
    arguments = (step.q, step.cache, step.prompts, layer)
    wanted = OURS(*arguments)

    assert torch.equal(guarded(*arguments), wanted)
    assert guarded.serves(step.prompts.chunks)
    assert guarded.serves_layer(step.cache, layer)
    assert torch.equal(guarded(*arguments), wanted)
    assert not guarded.serves(step.prompts.chunks)
    assert not guarded.serves_layer(step.cache, layer)
    assert [record.getMessage() for record in caplog.records] == [
        "prompts by triton from now on: wrong raised RuntimeError: Buffer overflow in a plan"
    ]
