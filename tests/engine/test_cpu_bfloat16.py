"""A decoder in bfloat16 on a CPU: compiled ops and attention beside torch's, and a whole engine."""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from paceline_engine.attention.native_attention import NativeAttention
from paceline_engine.attention.reference_attention import ReferenceAttention
from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.engine.engine import Engine
from paceline_engine.kv_cache.swap import BlockCopy
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.model import ops
from paceline_engine.model.ops import KernelOps
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.settings import Settings
from paceline_kernels.cpu import NativeOps, native_ops
from paceline_testing.clock import ManualClock
from paceline_testing.tiny_model import Family, make_tiny_model
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits

pytestmark = pytest.mark.skipif(native_ops() is None, reason="no C compiler here")

MODELS: dict[str, tuple[Family, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen2, biases": ("qwen2", {}),
    "qwen3, normed heads": ("qwen3", {}),
    "mistral, window": ("mistral", {"sliding_window": 6}),
    "gemma3, wide norms of heads": (
        "gemma3_text",
        {"sliding_window": 6, "sliding_window_pattern": 2},
    ),
}
PROMPT = torch.randint(300, (50,), generator=torch.Generator().manual_seed(3)).tolist()


def _load(
    folder: Path, dtype: Literal["float32", "bfloat16"] = "bfloat16", **settings: Any
) -> LoadedModel:
    asked = Settings(
        model_uri=f"file://{folder}",
        device="cpu",
        dtype=dtype,
        threads=1,
        kv_cache_bytes=1 << 20,
        **settings,
    )
    return load_model(asked, lambda _stage, _fraction: None)


def _logits(loaded: LoadedModel) -> torch.Tensor:
    """Compute the logits of the last tokens: one decoded over the stored prompt, one of a chunk."""
    count = -(-len(PROMPT) // loaded.capacity.block_size)
    shuffled = torch.randperm(2 * count, generator=torch.Generator().manual_seed(1)) + 1
    blocks = shuffled.view(2, count).tolist()
    sampling = Sampling(max_tokens=1, temperature=0.0)
    decode, chunk = (
        Request(str(row), PROMPT, len(PROMPT), sampling, row=row, block_ids=blocks[row])
        for row in range(2)
    )
    first = [
        ScheduledChunk(decode, 0, 49, samples=False, is_decode=False),
        ScheduledChunk(chunk, 0, 21, samples=False, is_decode=False),
    ]
    loaded.runner.logits(Batch(tuple(first), 0))
    then = [
        ScheduledChunk(decode, 49, 1, samples=True, is_decode=True),
        ScheduledChunk(chunk, 21, 29, samples=True, is_decode=False),
    ]
    return loaded.runner.logits(Batch(tuple(then), 1)).double()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_logits_are_as_near_to_float32_as_torchs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kv_cache_dtype: str
) -> None:
    """Both round; neither may be further off than the type and the other are."""
    family, config = MODELS[name]
    make_tiny_model(tmp_path, family, **({"head_dim": 32} | config))
    exact = _logits(_load(tmp_path, "float32"))
    loaded = _load(tmp_path, kv_cache_dtype=kv_cache_dtype)
    assert isinstance(loaded.runner._decoder.ops, NativeOps)
    assert isinstance(loaded.runner._attention, NativeAttention)

    ours = _logits(loaded)

    monkeypatch.setattr(ops, "native_ops", lambda: None)
    by_torch = _load(tmp_path, kv_cache_dtype=kv_cache_dtype)
    assert isinstance(by_torch.runner._decoder.ops, KernelOps)
    assert isinstance(by_torch.runner._attention, ReferenceAttention)
    theirs = _logits(by_torch)
    ours_off, theirs_off = ((seen - exact).norm() / exact.norm() for seen in (ours, theirs))
    assert ours_off < 1.3 * theirs_off + 1e-3, (ours_off, theirs_off)
    assert (ours - theirs).norm() / exact.norm() < 1.5 * theirs_off


def _answers(engine: Engine) -> tuple[list[list[int]], int]:
    """What it says to some prompts, greedily; and how many tokens it found in its cache."""
    sampling = Sampling(max_tokens=12, temperature=0.0, ignore_eos=True)
    for number, length in enumerate((3, 40, 17, 25)):
        engine.submit(Submit(str(number), PROMPT[-length:], sampling))
    answers: dict[str, list[int]] = {str(number): [] for number in range(4)}
    cached = 0
    while not engine.is_idle:
        for output in engine.step():
            assert output.error is None
            answers[output.id] += output.token_ids
            cached += output.cached_tokens
    return list(answers.values()), cached


def _engine(loaded: LoadedModel, *, rows: int = 4, token_budget: int = 256) -> Engine:
    limits = Limits(max_batch_size=rows, token_budget=token_budget)
    return Engine(
        loaded.runner,
        loaded.info,
        loaded.capacity,
        NoPacer(),
        limits=limits,
        clock=ManualClock(),
    )


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_answers_do_not_depend_on_the_prefix_cache(tmp_path: Path, kv_cache_dtype: str) -> None:
    """Blocks are reused as they lie, and a token attends alike in every batch."""
    make_tiny_model(tmp_path, "llama", head_dim=32)
    loaded = _load(tmp_path, kv_cache_dtype=kv_cache_dtype)
    whole, cold = _answers(engine := _engine(loaded))
    again, warm = _answers(engine)

    assert (cold, warm) == (0, 32 + 16 + 16)
    assert again == whole


def test_a_copied_block_holds_what_it_held(tmp_path: Path) -> None:
    """Out to the host and back to other blocks: the cache there reads the same."""
    make_tiny_model(tmp_path, "llama", head_dim=32)
    loaded = _load(tmp_path, swap_bytes=1 << 19)
    assert loaded.swapper is not None
    attention = loaded.runner._attention
    assert isinstance(attention, NativeAttention)
    assert attention.kv.is_paired
    wanted = _logits(loaded)
    blocks = list(range(9))
    before = [tensor[blocks].clone() for tensor in attention.kv.all]

    loaded.swapper.run([BlockCopy(block, block, is_out=True) for block in blocks])
    for tensor in attention.kv.all:
        tensor.zero_()
    loaded.swapper.run([BlockCopy(block, block, is_out=False) for block in blocks])

    for tensor, held in zip(attention.kv.all, before, strict=True):
        assert held.any()
        assert torch.equal(tensor[blocks], held)
    assert torch.equal(_logits(loaded), wanted)


def test_blocks_that_hold_no_pieces_are_attended_by_torch(tmp_path: Path) -> None:
    """The ops are compiled all the same."""
    make_tiny_model(tmp_path, "llama", head_dim=32)
    loaded = _load(tmp_path, block_size=8)

    assert isinstance(loaded.runner._decoder.ops, NativeOps)
    assert isinstance(loaded.runner._attention, ReferenceAttention)
    assert not loaded.runner._attention._attention.kv.is_paired
    assert _logits(loaded).isfinite().all()
