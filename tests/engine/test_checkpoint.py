"""Models are found, opened, or refused with a reason that a person can act on."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.uri import Places, locate
from paceline_engine.errors import (
    CorruptModel,
    DoesNotFit,
    DownloadFailed,
    EngineError,
    ModelNotFound,
    UnsupportedModel,
)
from paceline_engine.loading.load import load_model
from paceline_engine.settings import Settings
from paceline_testing.tiny_model import make_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tiny_model(tmp_path / "tiny", "llama")
    return tmp_path / "tiny"


def _places(tmp_path: Path) -> Places:
    return Places(models_dir=tmp_path, model_mount=tmp_path, hub=Hub(tmp_path / "cache"))


def _settings(folder: Path, **changes: Any) -> Settings:
    uri = f"file://{folder}"
    return Settings(
        model_uri=uri, device="cpu", dtype="float32", threads=1, kv_cache_bytes=1 << 22, **changes
    )


def _load(settings: Settings) -> Any:
    return load_model(settings, lambda _stage, _fraction: None)


def _edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("builtin://tiny", "tiny"),
        ("file://{root}/tiny", "tiny"),
        ("pvc://claim/tiny", "tiny"),
        ("oci://registry.example:5000/team/tiny:1.2@sha256:00", "tiny"),
    ],
)
def test_a_uri_leads_to_a_place(folder: Path, uri: str, name: str) -> None:
    """Each scheme has its own root; the name is the last part without tag and digest."""
    located = locate(uri.format(root=folder.parent), None, _places(folder.parent))

    assert located.name == name
    assert located.path in (folder, folder.parent)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("smollm2", "no model URI"),
        ("s3://bucket/model", "must be builtin, file, pvc, oci or hf, got 's3'"),
        ("file://models/x", "absolute path"),
        ("file:///no/such/model", "nothing at /no/such/model"),
        ("builtin://gpt-5", "built in is smollm2-135m-instruct"),
        ("pvc://claim/../../etc", "within the volume"),
        ("hf://a/b/c", "wanted is hf://ORG/NAME"),
    ],
)
def test_a_uri_that_leads_nowhere_says_why(tmp_path: Path, uri: str, says: str) -> None:
    with pytest.raises(ModelNotFound, match=says):
        locate(uri, None, _places(tmp_path))


def test_a_hub_that_cannot_be_reached_is_a_failed_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason must not be ModelNotFound: the model may be there, and a retry may help."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(DownloadFailed, match="hf://org/name at abc: the hub cannot be reached"):
        locate("hf://org/name", "abc", _places(tmp_path))


def test_a_folder_gives_sizes_tokenizer_and_ends(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)

    assert checkpoint.config.num_layers == 3
    assert checkpoint.eos_token_ids == (2,)
    assert checkpoint.tokenizer.eos_token == "<|im_end|>"
    assert "<|im_start|>" in (checkpoint.tokenizer.chat_template or "")


def test_generation_config_decides_what_ends_an_output(folder: Path) -> None:
    """Chat models name more ends there than in config.json."""
    _edit(folder / "generation_config.json", eos_token_id=[2, 0])

    assert open_checkpoint(folder).eos_token_ids == (2, 0)


def test_a_sharded_model_is_the_same_model(folder: Path) -> None:
    whole = load_file(folder / "model.safetensors")
    names = sorted(whole)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: whole[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in shards.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "model.safetensors").unlink()

    tensors = open_checkpoint(folder).tensors

    for name in names:
        torch.testing.assert_close(tensors.read(name), whole[name])


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_a_model_of_text_and_images_is_found(folder: Path, prefix: str) -> None:
    """Both ways in which it is named; the config of the text lies within the other."""
    weights = load_file(folder / "model.safetensors")
    renamed = {name.replace("model.", prefix, 1): values for name, values in weights.items()}
    save_file(renamed, folder / "model.safetensors")

    tensors = open_checkpoint(folder).tensors

    for name, values in weights.items():
        torch.testing.assert_close(tensors.read(name), values)


def test_a_template_file_goes_before_the_config(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages }}")

    assert open_checkpoint(folder).tokenizer.chat_template == "{{ messages }}"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"model_type": "mamba"},
            "'mamba'; the engine runs llama, mistral, qwen2, qwen3, gemma2, gemma3",
        ),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'; the engine runs silu, gelu_pytorch_tanh"),
        (
            {
                "model_type": "mistral",
                "sliding_window": 9,
                "layer_types": ["chunked_attention"] * 3,
            },
            "layer_types chunked_attention; the engine runs sliding_attention, full_attention",
        ),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling is 'yarn'"),
    ],
)
def test_what_the_engine_cannot_run_is_named(
    folder: Path, changes: dict[str, Any], says: str
) -> None:
    """A switch that is ignored would give wrong output without a word."""
    _edit(folder / "config.json", **changes)

    with pytest.raises(UnsupportedModel, match=says):
        open_checkpoint(folder)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _unlink(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("file", "damage", "error", "says"),
    [
        ("model.safetensors", _truncate, CorruptModel, "no whole safetensors file"),
        ("model.safetensors", _unlink, ModelNotFound, r"no \*.safetensors"),
        ("config.json", _truncate, CorruptModel, "config.json is no readable JSON"),
        ("config.json", _unlink, ModelNotFound, "needed is a config.json"),
        ("tokenizer.json", _truncate, CorruptModel, "tokenizer.json is no readable JSON"),
        ("tokenizer.json", _unlink, ModelNotFound, "no tokenizer.json"),
    ],
)
def test_a_damaged_folder_is_refused(
    folder: Path, file: str, damage: Any, error: type[EngineError], says: str
) -> None:
    damage(folder / file)

    with pytest.raises(error, match=says):
        _ = open_checkpoint(folder).tokenizer  # nothing of it is wrong until it is asked for


def test_a_model_whose_tokenizer_is_damaged_is_not_loaded(folder: Path) -> None:
    """It is made in a thread beside the weights, and nobody need ask for it."""
    _truncate(folder / "tokenizer.json")

    with pytest.raises(CorruptModel, match=r"tokenizer\.json is no readable JSON"):
        load_model(_settings(folder), lambda _stage, _fraction: None)


def test_weights_that_do_not_fit_the_config_are_corrupt(folder: Path) -> None:
    _edit(folder / "config.json", intermediate_size=96)

    with pytest.raises(CorruptModel, match=r"has shape \(48, 80\), .* asks for \(48, 96\)"):
        _load(_settings(folder))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sliding_window": -3}, "sliding_window must be a positive integer, got -3"),
        (
            {"sliding_window": 9, "layer_types": ["full_attention"]},
            "layer_types must name 3 layers, got 1",
        ),
    ],
)
def test_windows_that_make_no_sense_are_corrupt(
    folder: Path, changes: dict[str, Any], says: str
) -> None:
    _edit(folder / "config.json", model_type="mistral", **changes)

    with pytest.raises(CorruptModel, match=says):
        open_checkpoint(folder)


def test_a_window_of_the_whole_context_is_none(folder: Path) -> None:
    """Nothing is masked by it, so nothing is planned for it."""
    _edit(folder / "config.json", model_type="mistral", sliding_window=256)

    assert open_checkpoint(folder).config.windows == (None, None, None)


@pytest.mark.parametrize("size", [0, 3, 100, 5000])
def test_a_damaged_gguf_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00"[:size] + b"\x7f" * max(0, size - 8))

    with pytest.raises(CorruptModel, match=f"{path}.*no whole GGUF file"):
        open_checkpoint(path)


def test_a_context_that_the_cache_cannot_hold_does_not_fit(folder: Path) -> None:
    """The sentence has the arithmetic: what is held, what one token and what the sequence take."""
    settings = _settings(folder, max_model_len=200).model_copy(update={"kv_cache_bytes": 20_000})

    with pytest.raises(DoesNotFit, match=r"holds 32 tokens of 576 bytes.* 200 tokens needs"):
        _load(settings)


def test_a_cache_beyond_the_memory_does_not_fit(folder: Path) -> None:
    settings = _settings(folder).model_copy(update={"kv_cache_bytes": 1 << 50})

    with pytest.raises(DoesNotFit, match="PACELINE_ENGINE_KV_CACHE_BYTES"):
        _load(settings)


def test_a_loaded_model_says_what_it_is(folder: Path, tmp_path: Path) -> None:
    """What the sidecar and the scheduler learn is what the files and the settings say."""
    stages: list[str] = []
    model = load_model(
        _settings(folder),
        lambda stage, _fraction: stages.append(stage),
        lambda tokenizer: tokenizer.write(tmp_path),
    )

    assert model.info.name == "tiny"
    assert model.info.family == "llama"
    assert model.info.kv_bytes_per_token == 2 * 3 * 2 * 12 * 4
    assert model.info.max_model_len == model.capacity.max_model_len == 256
    assert model.capacity.num_blocks == (1 << 22) // (576 * 16)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"
    assert list(dict.fromkeys(stages)) == ["fetching", "reading", "loading weights", "warming up"]
