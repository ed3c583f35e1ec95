"""The compiled attention of prompts, beside torch's in float64."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from paceline_kernels.cpu import NativeOps, native_ops
from paceline_kernels.prefill_attention import reference_paged_prefill_attention
from paceline_testing.kernel_cases import assert_near, random_floats

BLOCK_SIZE = 8
SCALE = 0.2


@pytest.fixture(params=[1, 2], ids=lambda threads: f"{threads} threads")
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> NativeOps:
    ops = native_ops()
    if ops is None:
        pytest.skip("no C compiler here")
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)
    return ops


def _floats(*sizes: int, seed: int = 0) -> Tensor:
    return random_floats(*sizes, dtype=torch.float32, device="cpu", seed=seed)


@dataclass(frozen=True)
class Case:
    """Sequences as (tokens in the step, keys that the last of them sees)."""

    sequences: list[tuple[int, int]]
    heads: tuple[int, int, int]
    window: int | None = None

    def attend(self, native: NativeOps) -> tuple[Tensor, Tensor]:
        """Seen and wanted, over shuffled blocks with NaN in every slot that no token may read."""
        q_heads, kv_heads, size = self.heads
        counts = [-(-length // BLOCK_SIZE) for _, length in self.sequences]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(3)) + 1
        k, v = (_floats(sum(counts) + 1, BLOCK_SIZE, kv_heads, size, seed=s) for s in (4, 5))
        k[0] = v[0] = torch.nan
        table = torch.zeros(len(counts), max(counts) + 1, dtype=torch.int32)
        for row, (blocks, (_, length)) in enumerate(
            zip(order.split(counts), self.sequences, strict=True)
        ):
            table[row, : len(blocks)] = blocks.int()
            if length % BLOCK_SIZE:
                k[blocks[-1], length % BLOCK_SIZE :] = torch.nan
                v[blocks[-1], length % BLOCK_SIZE :] = torch.nan
        tokens = [tokens for tokens, _ in self.sequences]
        starts = torch.tensor([0, *tokens]).cumsum(0).int()
        lengths = torch.tensor([length for _, length in self.sequences], dtype=torch.int32)
        qkv = _floats(sum(tokens), (q_heads + 2 * kv_heads) * size, seed=6)
        q = qkv[:, : q_heads * size].unflatten(1, (q_heads, size))
        wanted = reference_paged_prefill_attention(
            q.double(), k.double(), v.double(), table, starts, lengths, SCALE, self.window
        )
        out = torch.empty(sum(tokens), q_heads * size)
        native.paged_prompt_attention(
            qkv=qkv,
            num_q_heads=q_heads,
            k_cache=k,
            v_cache=v,
            block_table=table,
            cu_seqlens=starts,
            context_lens=lengths,
            out=out,
            scale=SCALE,
            window=self.window,
        )
        return out, wanted.flatten(1)


HEADS = [(9, 3, 64), (4, 4, 16), (32, 1, 32), (7, 1, 96), (2, 1, 128)]
SEQUENCES = [[(1, 1)], [(5, 5), (3, 40)], [(33, 33), (1, 9), (20, 100), (64, 64)]]


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("sequences", SEQUENCES, ids=str)
@pytest.mark.parametrize("window", [None, 1, 12])
def test_prompts_agree_with_float64(
    native: NativeOps,
    sequences: list[tuple[int, int]],
    heads: tuple[int, int, int],
    window: int | None,
) -> None:
    """Whole prompts and the ends of long ones; groups that fill a tile's lines and that do not."""
    seen, wanted = Case(sequences, heads, window).attend(native)

    assert_near(seen, wanted)


def test_what_is_not_a_number_is_not_lost(native: NativeOps) -> None:
    """A query that is none has no attention either; the queries beside it have theirs."""
    qkv, cache = _floats(4, 48), _floats(1, BLOCK_SIZE, 1, 16)
    qkv[1, 0] = torch.nan
    out = torch.empty(4, 16)

    native.paged_prompt_attention(
        qkv=qkv,
        num_q_heads=1,
        k_cache=cache,
        v_cache=cache,
        block_table=torch.zeros(1, 1, dtype=torch.int32),
        cu_seqlens=torch.tensor([0, 4], dtype=torch.int32),
        context_lens=torch.tensor([4], dtype=torch.int32),
        out=out,
        scale=SCALE,
        window=None,
    )

    assert out[1].isnan().all()
    assert out[[0, 2, 3]].isfinite().all()


def test_heads_that_no_tile_holds_are_refused(native: NativeOps) -> None:
    """A group is in one tile, and a head is whole vectors."""
    cases = {"33 heads on one": (33, 1, 16), "1 heads of 24": (1, 1, 24)}
    for words, heads in cases.items():
        with pytest.raises(ValueError, match=words):
            Case([(1, 1)], heads).attend(native)
