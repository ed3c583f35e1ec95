"""Keys and values in FP8: what they cost in exactness, and how many more tokens they hold."""

from pathlib import Path

import pytest
import torch

from paceline_engine.attention.kernel_attention import KernelAttention
from paceline_engine.attention.native_attention import NativeAttention
from paceline_engine.attention.reference_attention import ReferenceAttention
from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.engine.engine import Engine
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.runner.cpu_tables import HostTables
from paceline_engine.runner.input_batch import InputBatch
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.settings import KvCacheDtype, Settings
from paceline_testing.clock import ManualClock
from paceline_testing.embedded_model import Divergences
from paceline_testing.tiny_model import Family, make_tiny_model
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits

LENGTHS = (3, 40, 17, 25)


def _load(folder: Path, kv_cache_dtype: KvCacheDtype, *, swap_bytes: int = 0) -> LoadedModel:
    settings = Settings(
        model_uri=f"file://{folder}",
        device="cpu",
        dtype="float32",
        threads=1,
        kv_cache_bytes=1 << 20,
        kv_cache_dtype=kv_cache_dtype,
        swap_bytes=swap_bytes,
    )
    return load_model(settings, lambda _stage, _fraction: None)


def _logits(loaded: LoadedModel, token_ids: list[int]) -> torch.Tensor:
    """Compute the logits of the last token, decoded over the stored prompt."""
    blocks = list(range(1, 2 + len(token_ids) // 16))
    sampling = Sampling(max_tokens=1, temperature=0.0)
    request = Request("r", token_ids, len(token_ids), sampling, row=0, block_ids=blocks)
    last = len(token_ids) - 1
    prompt = Batch(
        (ScheduledChunk(request, 0, last, samples=False, is_decode=False),), num_decodes=0
    )
    loaded.runner.logits(prompt)
    decode = Batch((ScheduledChunk(request, last, 1, samples=True, is_decode=True),), num_decodes=1)
    return loaded.runner.logits(decode)


def _answers(engine: Engine) -> tuple[list[list[int]], int]:
    """What it says to some prompts, greedily; and how many tokens it found in its cache."""
    generator = torch.Generator().manual_seed(1)
    sampling = Sampling(max_tokens=12, temperature=0.0, ignore_eos=True)
    for number, length in enumerate(LENGTHS):
        prompt = torch.randint(3, 300, (length,), generator=generator).tolist()
        engine.submit(Submit(str(number), prompt, sampling))
    answers: dict[str, list[int]] = {str(number): [] for number in range(len(LENGTHS))}
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
        loaded.runner, loaded.info, loaded.capacity, NoPacer(), limits=limits, clock=ManualClock()
    )


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gemma3_text"])
@pytest.mark.parametrize("head_size", [16, 12], ids=["compiled", "torch"])
def test_answers_do_not_depend_on_chunks_or_the_prefix_cache(
    tmp_path: Path, family: Family, head_size: int
) -> None:
    """Attention reads what is stored, also of the step's own tokens."""
    make_tiny_model(tmp_path, family, head_dim=head_size)
    loaded = _load(tmp_path, "fp8")
    whole, cold = _answers(engine := _engine(loaded))
    again, warm = _answers(engine)

    assert (cold, warm) == (0, 32 + 16 + 16)
    assert again == whole
    assert _answers(_engine(loaded, rows=3, token_budget=7))[0] == whole


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3_text"])
def test_a_models_logits_stay_near_those_in_float32(tmp_path: Path, family: Family) -> None:
    """Three layers of random weights, every key and value within a sixteenth of its size."""
    make_tiny_model(tmp_path, family, head_dim=16)
    token_ids = torch.randint(300, (30,), generator=torch.Generator().manual_seed(3)).tolist()

    exact, near = (_logits(_load(tmp_path, dtype), token_ids) for dtype in ("auto", "fp8"))

    error = float((near - exact).norm() / exact.norm())
    assert 1e-3 < error < 0.25, error


def test_every_backend_reads_and_writes_the_same_codes(tmp_path: Path) -> None:
    """The compiled ops, and the kernels' references with prompts whole and cut."""
    make_tiny_model(tmp_path, "qwen3", head_dim=16)
    token_ids = torch.randint(300, (50,), generator=torch.Generator().manual_seed(3)).tolist()
    loaded = _load(tmp_path, "fp8")
    native = loaded.runner._attention
    assert isinstance(native, NativeAttention)
    wanted = _logits(loaded, token_ids)

    config, kv, tables = native.config, native.kv, native.tables
    decoder, sampler = loaded.runner._decoder, loaded.runner._sampler
    for attention in (
        ReferenceAttention(config, kv, tables),
        KernelAttention(config, kv, tables),
    ):
        for tensor in kv.all:
            tensor.zero_()
        input_batch = InputBatch(1, 8, 16, config.vocab_size, salt=None)
        runner = ModelRunner(decoder, attention, sampler, input_batch, HostTables(1, 8, 16))

        seen = _logits(LoadedModel(runner, loaded.info, loaded.capacity), token_ids)

        # A code may fall the other way where the float before it differs in its last bit.
        assert float((seen - wanted).norm() / wanted.norm()) < 1e-2


def test_the_same_memory_holds_nearly_four_times_the_tokens(tmp_path: Path) -> None:
    """A value takes one byte instead of four; each head of 32 values takes one more."""
    make_tiny_model(tmp_path, "llama", head_dim=32)
    floats, codes = (_load(tmp_path, dtype, swap_bytes=1 << 19) for dtype in ("auto", "fp8"))

    assert floats.info.kv_bytes_per_token == 2 * 3 * 2 * 32 * 4
    assert codes.info.kv_bytes_per_token == 2 * 3 * 2 * (32 + 1)
    for loaded in (floats, codes):
        attention = loaded.runner._attention
        assert isinstance(attention, NativeAttention)
        held = sum(tensor.nbytes for tensor in attention.kv.all)
        block_bytes = 16 * loaded.info.kv_bytes_per_token
        assert held == loaded.capacity.num_blocks * block_bytes
        assert loaded.capacity.num_blocks == (1 << 20) // block_bytes
        assert loaded.swapper is not None
        assert loaded.swapper.num_slots == (1 << 19) // block_bytes
    assert codes.capacity.num_blocks > 3.8 * floats.capacity.num_blocks


def test_engines_of_different_caches_share_no_step_model(tmp_path: Path) -> None:
    """Reading half the bytes takes another time."""
    make_tiny_model(tmp_path, "llama")

    assert "kv_cache_dtype=fp8" in _load(tmp_path, "fp8").info.features
    assert not any("kv_cache" in f for f in _load(tmp_path, "auto").info.features)


@pytest.mark.model
def test_the_embedded_model_changes_its_mind_a_little(
    embedded_model: LoadedModel, divergences: Divergences
) -> None:
    """Measured: 0.011 nats apart in the mean over 32 prompts, the worst 0.041."""
    settings = Settings(device="cpu", dtype="float32", threads=1, kv_cache_dtype="fp8")
    near = load_model(settings, lambda _stage, _fraction: None)

    found = divergences(near)

    assert near.capacity.num_blocks > 3.9 * embedded_model.capacity.num_blocks
    assert max(found) < 0.06, found
    assert 1e-3 < sum(found) / len(found) < 0.015, found
