"""Every layer in one call gives the same numbers as the layers op by op."""

from pathlib import Path
from typing import Literal

import pytest
import torch

from paceline_engine.core.step_tensors import StepTensors
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.settings import KvCacheDtype, Quantization, Settings
from paceline_kernels.cpu import native_ops
from paceline_testing.clock import ManualClock
from paceline_testing.tiny_model import Family, make_tiny_model
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits

pytestmark = pytest.mark.skipif(native_ops() is None, reason="no C compiler here")

LENGTHS = (1, 40, 3, 17, 70, 25)


def _load(
    folder: Path,
    dtype: Literal["float32", "bfloat16"],
    quantization: Quantization = "none",
    kv_cache_dtype: KvCacheDtype = "auto",
    max_loras: int = 0,
) -> LoadedModel:
    settings = Settings(
        model_uri=f"file://{folder}",
        device="cpu",
        threads=2,
        kv_cache_bytes=1 << 20,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        max_loras=max_loras,
    )
    return load_model(settings, lambda _stage, _fraction: None)


def _has_byte_products() -> bool:
    ops = native_ops()
    return ops is not None and ops.matmul.has_byte_products


def _answers(loaded: LoadedModel) -> dict[str, list[int]]:
    """Answer prompts in chunks of 16 tokens, beside decodes: kept rows, windows, many blocks."""
    engine = Engine(
        loaded.runner,
        loaded.info,
        loaded.capacity,
        NoPacer(),
        limits=Limits(max_batch_size=4, token_budget=16),
        clock=ManualClock(),
        options=EngineOptions(prefix_caching=False),
    )
    generator = torch.Generator().manual_seed(1)
    sampling = Sampling(max_tokens=12, temperature=0.0, ignore_eos=True)
    for number, length in enumerate(LENGTHS):
        prompt = torch.randint(3, 300, (length,), generator=generator).tolist()
        engine.submit(Submit(str(number), prompt, sampling))
    answers: dict[str, list[int]] = {str(number): [] for number in range(len(LENGTHS))}
    while not engine.is_idle:
        for output in engine.step():
            assert output.error is None
            answers[output.id] += output.token_ids
    return answers


def _prompt_step(tokens: int) -> StepTensors:
    """One prompt in the first blocks."""
    places = torch.arange(tokens)
    return StepTensors(
        num_decodes=0,
        token_ids=places + 5,
        positions=places,
        slots=places,
        block_table=torch.tensor([[0, 1]], dtype=torch.int32),
        bounds=torch.tensor([0, tokens], dtype=torch.int32),
        context_lens=torch.tensor([tokens], dtype=torch.int32),
        chunks=((tokens, tokens),),
    )


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3_text"])
def test_one_call_computes_what_the_ops_compute(
    tmp_path: Path,
    family: Family,
    dtype: Literal["float32", "bfloat16"],
    quantization: Quantization,
) -> None:
    """Biases, norms of heads, norms behind attention and MLP, windows, scaled embeddings."""
    make_tiny_model(tmp_path, family, head_dim=16)
    loaded = _load(tmp_path, dtype, quantization)
    if (dtype, quantization) == ("bfloat16", "int8") and not _has_byte_products():
        # Rows are widened for each product, op by op.
        assert loaded.runner.layer_stack is None
        return
    assert loaded.runner.layer_stack is not None

    together = _answers(loaded)
    loaded.runner.layer_stack = None

    assert _answers(loaded) == together


@pytest.mark.parametrize("kept", [[4, 8], [0], [], list(range(9)), None], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_hidden_states_are_the_same_to_the_last_bit(
    tmp_path: Path, dtype: Literal["float32", "bfloat16"], kept: list[int] | None
) -> None:
    """The same ops run in the same order, whoever calls them; of tokens that nobody reads, none."""
    make_tiny_model(tmp_path, "gemma3_text", head_dim=16)
    runner = _load(tmp_path, dtype).runner
    stack, decoder = runner.layer_stack, runner._decoder
    assert stack is not None
    step = _prompt_step(9)
    rows = None if kept is None else torch.tensor(kept, dtype=torch.int64)

    with torch.inference_mode():
        together = stack.hidden(step, rows)
        apart = decoder.hidden(step.token_ids, runner._attention.plan(step), rows)

    assert together.dtype == getattr(torch, dtype)
    assert torch.equal(together, apart)


def test_adapters_and_a_cache_of_codes_below_float32_go_op_by_op(tmp_path: Path) -> None:
    """An adapter adds to each product; prompts in float32 read no codes where they lie."""
    make_tiny_model(tmp_path, "llama", head_dim=16)

    assert _load(tmp_path, "float32", max_loras=1).runner.layer_stack is None
    assert _load(tmp_path, "float32", kv_cache_dtype="fp8").runner.layer_stack is None
    assert _load(tmp_path, "bfloat16", kv_cache_dtype="fp8").runner.layer_stack is not None
    assert _load(tmp_path, "bfloat16", quantization="fp8").runner.layer_stack is None
