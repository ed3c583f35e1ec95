"""Two ranks say what one says: each holds half of the heads and of the MLP."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.errors import BadSettings
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.model.sharding import shard_of
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.settings import KvCacheDtype, Settings
from paceline_testing.clock import ManualClock
from paceline_testing.tiny_model import Family, make_tiny_model
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits

LENGTHS = (3, 40, 17, 25)


@pytest.fixture(params=["qwen2", "gemma3_text"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Biases are cut as their weights are; norms of heads are whole."""
    family: Family = request.param
    make_tiny_model(tmp_path, family, head_dim=12)
    return tmp_path


def _settings(folder: Path, *, ranks: int, kv_cache_dtype: KvCacheDtype = "auto") -> Settings:
    return Settings(
        model_uri=f"file://{folder}",
        device="cpu",
        dtype="float32",
        threads=1,
        kv_cache_bytes=1 << 20,
        tensor_parallel_size=ranks,
        kv_cache_dtype=kv_cache_dtype,
    )


def _load(folder: Path, *, ranks: int, kv_cache_dtype: KvCacheDtype = "auto") -> LoadedModel:
    settings = _settings(folder, ranks=ranks, kv_cache_dtype=kv_cache_dtype)
    return load_model(settings, lambda _stage, _fraction: None)


@pytest.fixture
def both(folder: Path) -> Iterator[LoadedModel]:
    loaded = _load(folder, ranks=2)
    yield loaded
    loaded.group.close()


def _answers(loaded: LoadedModel, *, overlap: bool = False) -> list[list[int]]:
    engine = Engine(
        loaded.runner,
        loaded.info,
        loaded.capacity,
        NoPacer(),
        limits=Limits(max_batch_size=3, token_budget=13),
        clock=ManualClock(),
        options=EngineOptions(overlap=overlap),
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
    return list(answers.values())


def test_two_ranks_say_what_one_says(folder: Path, both: LoadedModel) -> None:
    """Batched and in chunks; the cache of each rank holds half the heads, so twice the tokens.

    Also where a step is launched before the tokens of the one before are read.
    """
    alone = _load(folder, ranks=1)

    said = _answers(alone)
    assert _answers(both) == said
    assert _answers(both, overlap=True) == said
    assert both.capacity.num_blocks // 2 == alone.capacity.num_blocks
    assert both.info.num_parameters == alone.info.num_parameters
    assert "tensor_parallel_size=2" in both.info.features


def test_ranks_compute_in_the_type_that_the_first_chose(tmp_path: Path) -> None:
    """It alone measures: ranks of two types could not add up what they have."""
    make_tiny_model(tmp_path, "llama")
    both = load_model(
        _settings(tmp_path, ranks=2).model_copy(update={"dtype": "auto"}),
        lambda _stage, _fraction: None,
    )

    try:
        assert all(len(answer) == 12 for answer in _answers(both))
        assert both.info.dtype_reason
    finally:
        both.group.close()


def test_two_ranks_store_the_codes_that_one_stores(tmp_path: Path) -> None:
    """An exponent belongs to one head, and a head to one rank."""
    make_tiny_model(tmp_path, "qwen2", head_dim=16)
    alone = _load(tmp_path, ranks=1, kv_cache_dtype="fp8")
    both = _load(tmp_path, ranks=2, kv_cache_dtype="fp8")

    try:
        assert _answers(both) == _answers(alone)
        assert both.capacity.num_blocks // 2 == alone.capacity.num_blocks
    finally:
        both.group.close()


def test_a_rank_that_dies_ends_the_engine(both: LoadedModel) -> None:
    """A step without one of the ranks would be wrong; the pod is started again."""
    [follower] = both.group._followers
    follower.kill()
    follower.join()

    with pytest.raises(RuntimeError, match="Rank 1 has ended with status -9"):
        _answers(both)


def test_ranks_end_when_they_are_told(both: LoadedModel) -> None:
    [follower] = both.group._followers

    both.group.close()

    assert follower.exitcode == 0


def test_a_count_of_heads_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    """In a sentence with both numbers, before a process is started."""
    make_tiny_model(tmp_path, "llama", num_attention_heads=6, num_key_value_heads=3, head_dim=8)

    with pytest.raises(BadSettings) as refusal:
        _load(tmp_path, ranks=2)

    assert refusal.value.message == (
        "PACELINE_ENGINE_TENSOR_PARALLEL_SIZE is 2, which does not divide the model's "
        "3 key and value heads."
    )


def test_the_mlp_must_divide_too(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, "llama", intermediate_size=81)

    with pytest.raises(BadSettings, match="2, which does not divide the model's 81 features"):
        shard_of(open_checkpoint(tmp_path).config, 2)


@pytest.mark.parametrize("field", ["max_loras", "swap_bytes"])
def test_what_ranks_cannot_do_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be 0 with a tensor_parallel_size above 1"):
        Settings.model_validate({"tensor_parallel_size": 2, field: 1})
