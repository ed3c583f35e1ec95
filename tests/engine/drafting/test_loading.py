"""A draft model is loaded beside the model, or refused in a sentence that says why."""

import json
from pathlib import Path

import pytest
import torch

from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.errors import BadSettings, DoesNotFit, ModelNotFound
from paceline_engine.loading import memory
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.model.layers.linear import Linear, NativeLinear
from paceline_engine.model.layers.quantized_linear import TiledLinear
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.settings import Quantization, Settings
from paceline_testing.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    make_tiny_model(made, "llama")
    return made


def is_quantized(product: Linear) -> bool:
    if isinstance(product, NativeLinear):
        return product.weight.scales is not None
    return isinstance(product, TiledLinear)


def load(folder: Path, draft: Path | None, quantization: Quantization | None = None) -> LoadedModel:
    settings = Settings(
        model_uri=f"file://{folder}",
        device="cpu",
        dtype="float32",
        threads=1,
        kv_cache_bytes=1 << 20,
        speculative="none" if draft is None else "draft",
        draft_model_uri=None if draft is None else f"file://{draft}",
        draft_quantization=quantization,
    )
    return load_model(settings, lambda _stage, _fraction: None)


def test_both_caches_share_the_memory_that_one_had(folder: Path, tmp_path: Path) -> None:
    """A block is there twice: for three layers of the model and one of its draft model."""
    make_tiny_model(tmp_path, "qwen2", num_hidden_layers=1)

    alone, both = load(folder, None), load(folder, tmp_path)

    assert alone.draft is None
    assert both.draft is not None
    assert both.draft.info.family == "qwen2"
    assert (alone.capacity.num_blocks, both.capacity.num_blocks) == (113, 85)
    assert both.draft.info.kv_bytes_per_token * 3 == alone.info.kv_bytes_per_token


def test_a_draft_model_may_be_quantised_alone(folder: Path) -> None:
    """A model that drafts for itself in a quarter of the bytes; its head, too, is only a draft."""
    both = load(folder, folder, quantization="int8")

    assert both.draft is not None
    assert isinstance(both.draft.runner, ModelRunner)
    exact, draft = both.runner._decoder, both.draft.runner._decoder
    assert not is_quantized(exact.layers[0].qkv.product)
    assert not is_quantized(exact.head)
    assert is_quantized(draft.layers[0].qkv.product)
    assert is_quantized(draft.head)
    assert both.draft.info.weight_bytes < both.info.weight_bytes


def test_another_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its numbers are other words."""
    make_tiny_model(tmp_path, "llama", vocab_size=320)

    with pytest.raises(
        BadSettings, match=r"has a vocabulary of 320 tokens and the model one of 300"
    ):
        load(folder, tmp_path)


def test_other_words_by_the_same_numbers_are_refused(folder: Path, tmp_path: Path) -> None:
    """As many tokens are not the same ones."""
    make_tiny_model(tmp_path, "llama")
    path = tmp_path / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    names = list(tokenizer["model"]["vocab"])
    moved = [*names[:10], *names[11:], names[10]]
    tokenizer["model"]["vocab"] = {name: number for number, name in enumerate(moved)}
    path.write_text(json.dumps(tokenizer), encoding="utf-8")

    with pytest.raises(BadSettings, match=r"of the 300 tokens of file:///\S+ only 10 are among"):
        load(folder, tmp_path)


def test_a_draft_model_that_is_nowhere_is_named(folder: Path, tmp_path: Path) -> None:
    """It is found as the model is."""
    with pytest.raises(ModelNotFound, match="nothing at"):
        load(folder, tmp_path / "nowhere")


def test_weights_that_fit_only_alone_are_refused(folder: Path) -> None:
    """Before either is loaded, with both sizes."""
    config = open_checkpoint(folder).config
    weights = memory.weight_bytes(config, torch.float32, "none")
    free = memory.DeviceMemory(total_bytes=1 << 30, free_bytes=2 * weights - 1)

    memory.require_weights_fit(config, torch.float32, "none", free)
    with pytest.raises(DoesNotFit, match=r"need 0.00 GiB and the draft model's 0.00 GiB, but only"):
        memory.require_both_fit([config, config], torch.float32, ["none", "none"], free)
    enough = memory.DeviceMemory(total_bytes=1 << 30, free_bytes=2 * weights)
    memory.require_both_fit([config, config], torch.float32, ["none", "none"], enough)


def test_a_cache_that_holds_no_sequence_of_both_is_refused(folder: Path) -> None:
    """What fits alone need not fit twice."""
    config = open_checkpoint(folder).config
    needed = 256 * config.kv_bytes_per_token(4)
    settings = Settings(kv_cache_bytes=needed, max_model_len=256, block_size=16)
    cpu = torch.device("cpu")

    alone = memory.capacity(settings, config, torch.float32, cpu, needed)
    assert alone.max_model_len == 256
    with pytest.raises(DoesNotFit, match="one sequence of 256 tokens needs"):
        memory.capacity(settings, config, torch.float32, cpu, needed, beside=[config])
