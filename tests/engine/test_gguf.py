"""A GGUF file says the same of a model as the folder that it was made from, in each family."""

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType, GGUFEndian, GGUFReader, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, GgufConfig

from paceline_engine.checkpoint import gguf_file
from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.gguf_config import read_config
from paceline_engine.checkpoint.gguf_file import FileMetadata, GgufTensors
from paceline_engine.checkpoint.gguf_reader import GuardedReader
from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.sentence_piece import build_sentence_piece
from paceline_engine.checkpoint.uri import Places, locate
from paceline_engine.errors import CorruptModel
from paceline_kernels.cpu import BLOCK_KINDS
from paceline_testing.random_blocks import random_blocks, values_of
from paceline_testing.tiny_gguf import write_tiny_gguf
from paceline_testing.tiny_model import Family, make_tiny_model

# What transformers takes for granted: heads of 128 in Qwen3, Gemma's scores scaled by 256, every
# sixth of its layers full.
GEMMA: dict[str, Any] = {"sliding_window": 9, "head_dim": 256, "num_hidden_layers": 6}
MODELS: dict[str, tuple[Family, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied head": ("llama", {"tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 4096, "max_position_embeddings": 8192}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 128}),
    "gemma2": ("gemma2", GEMMA),
    "gemma3": ("gemma3_text", GEMMA),
}


@pytest.fixture(params=MODELS)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def _tensor_names(num_layers: int, config: Any) -> list[str]:
    names = ["model.embed_tokens.weight", "model.norm.weight"]
    names += [] if config.tied_head else ["lm_head.weight"]
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config.post_norms:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    if config.qk_norm:
        norms += ["self_attn.q_norm", "self_attn.k_norm"]
    parts = [f"self_attn.{part}_proj" for part in "qkvo"]
    parts += [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    for index in range(num_layers):
        names += [f"model.layers.{index}.{part}.weight" for part in norms + parts]
        if config.qkv_bias:
            names += [f"model.layers.{index}.self_attn.{part}_proj.bias" for part in "qkv"]
    return names


def test_a_gguf_file_holds_what_its_folder_holds(tmp_path: Path, family: str) -> None:
    """Every switch and every tensor, bit by bit but for what is added to a norm and taken away."""
    kind, config = MODELS[family]
    make_tiny_model(tmp_path, kind, **config)
    write_tiny_gguf(tmp_path, tmp_path / "tiny.gguf")

    ours, folder = open_checkpoint(tmp_path / "tiny.gguf"), open_checkpoint(tmp_path)

    assert ours.config.norm_eps == pytest.approx(folder.config.norm_eps)
    assert dataclasses.replace(ours.config, norm_eps=folder.config.norm_eps) == folder.config
    for name in _tensor_names(folder.config.num_layers, folder.config):
        torch.testing.assert_close(
            ours.tensors.read(name), folder.tensors.read(name), atol=1e-6, rtol=0
        )


def test_the_file_is_the_one_that_transformers_reads(tmp_path: Path, family: str) -> None:
    """The file was written by a test: another reader must find the same model in it."""
    kind, config = MODELS[family]
    reference = make_tiny_model(tmp_path, kind, **config)
    (tmp_path / "gguf").mkdir()
    path = tmp_path / "gguf/tiny.gguf"
    write_tiny_gguf(tmp_path, path)

    theirs = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        quantization_config=GgufConfig(gguf_file=path.name, dequantize=True),
        dtype=torch.float32,
        attn_implementation="eager",
    )

    prompt = torch.randint(300, (1, 30), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(
            theirs(prompt).logits, reference(prompt).logits, atol=1e-3, rtol=1e-3
        )


@pytest.mark.parametrize("order", [*GGUFEndian], ids=str)
def test_metadata_are_those_that_ggufs_own_reader_finds(tmp_path: Path, order: GGUFEndian) -> None:
    """Lists are read another way than gguf does, and its bytes may come in either order."""
    path = tmp_path / "lists.gguf"
    writer = GGUFWriter(path, "llama", endianess=order)
    writer.add_array("texts", ["a", "", "é" * 300])
    writer.add_array("integers", [1, -2, 1 << 20])
    writer.add_array("floats", [0.5, -1.25])
    writer.add_array("flags", [True, False])
    writer.add_string("last", "after them")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    ours, theirs = (
        {name: field.contents() for name, field in reader(path).fields.items()}
        for reader in (GuardedReader, GGUFReader)
    )

    assert ours == theirs
    assert ours["texts"] == ["a", "", "é" * 300]


GEMMA3_27B = {
    "general.architecture": "gemma3",
    "gemma3.block_count": 62,
    "gemma3.embedding_length": 5376,
    "gemma3.feed_forward_length": 21504,
    "gemma3.attention.head_count": 32,
    "gemma3.attention.head_count_kv": 16,
    "gemma3.attention.key_length": 128,
    "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma3.attention.sliding_window": 1024,
    "gemma3.context_length": 131072,
    "gemma3.rope.freq_base": 1e6,
    "gemma3.rope.scaling.type": "linear",
    "gemma3.rope.scaling.factor": 8.0,
    "gemma3.vocab_size": 262208,
}


class SomeMetadata(dict[str, Any]):
    """A file's metadata."""


@pytest.mark.model
@pytest.mark.parametrize("by", ["the op", "the package"])
@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_blocks_are_dequantised_as_ggufs_own_package_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, by: str
) -> None:
    """However many lie in a row, and whatever divides the number of all of them."""
    if by == "the package":
        monkeypatch.setattr(gguf_file, "native_ops", lambda: None)
    sizes = ((48, 768), (3, 256), (1, 256 * 67), (97, 512), (1024, 256))
    weights = {f"w{n}": random_blocks(kind, *shape, seed=n) for n, shape in enumerate(sizes)}
    writer = GGUFWriter(tmp_path / "blocks.gguf", "qwen2")
    for name, blocks in weights.items():
        rows = blocks.rows.numpy()
        writer.add_tensor(name, rows, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    path = tmp_path / "blocks.gguf"
    reader = GuardedReader(path)
    tensors = GgufTensors(path, reader, FileMetadata(path, reader))

    for name, blocks in weights.items():
        seen = torch.from_numpy(tensors.read_raw(name))
        torch.testing.assert_close(seen.double(), values_of(blocks), rtol=0, atol=0)


def test_an_odd_number_of_heads_is_read() -> None:
    """The embedded model has 9 for queries and 3 for keys, each of 64 rows."""
    places = Places(models_dir=None, model_mount=Path("/model"), hub=Hub(Path("/cache")))
    checkpoint = open_checkpoint(locate("builtin://smollm2-135m-instruct", None, places).path)
    layer = "model.layers.0.self_attn"

    assert checkpoint.tensors.read(f"{layer}.q_proj.weight").shape == (576, 576)
    assert checkpoint.tensors.read(f"{layer}.k_proj.weight").shape == (192, 576)


def test_the_largest_gemma_scales_its_scores_by_hidden_size_over_heads() -> None:
    """168, not its head size of 128: the files do not say so, llama.cpp knows it by the layers."""
    config = read_config(SomeMetadata(GEMMA3_27B), has_head=False, rope_divisors=None)

    assert config.score_scale == pytest.approx(168**-0.5)
    assert (config.rope.kind, config.rope.factor) == ("linear", 8.0)
    assert config.window_rope is not None
    assert (config.window_rope.theta, config.window_rope.kind) == (1e4, "default")


def test_a_pattern_that_is_no_number_is_refused() -> None:
    metadata = SomeMetadata(GEMMA3_27B)
    metadata["gemma3.attention.sliding_window_pattern"] = [True, False]

    with pytest.raises(CorruptModel, match="sliding_window_pattern must be a number, got list"):
        read_config(metadata, has_head=False, rope_divisors=None)


PIECES = {
    **{piece: -float(i) for i, piece in enumerate(["ab", "▁a", "bc", "abc", "▁▁", "c▁", "▁ab"])},
    **dict.fromkeys("▁abc", -100.0),
}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _pieces(*, prefix: bool) -> SomeMetadata:
    tokens = ["<unk>", "<s>", "  \n", *BYTES, *PIECES]
    return SomeMetadata(
        {
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [PIECES.get(token, 0.0) for token in tokens],
            "tokenizer.ggml.token_type": [2, 3, 4] + [6] * 256 + [1] * len(PIECES),
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.add_space_prefix": prefix,
        }
    )


def _joined(text: str) -> list[str]:
    """SentencePiece as its paper has it: the best pair of neighbours, as long as there is one."""
    pieces = list(text.replace(" ", "▁"))
    while True:
        pairs = [left + right for left, right in pairwise(pieces)]
        best = max((PIECES[pair] for pair in pairs if pair in PIECES), default=None)
        if best is None:
            return [
                token
                for piece in pieces
                for token in (
                    [piece] if piece in PIECES else [f"<0x{b:02X}>" for b in piece.encode()]
                )
            ]
        at = next(i for i, pair in enumerate(pairs) if PIECES.get(pair) == best)
        pieces[at : at + 2] = [pairs[at]]


@settings(deadline=None)
@given(st.text(alphabet="abc é", max_size=40))
def test_pieces_are_joined_as_sentence_piece_joins_them(text: str) -> None:
    tokenizer = build_sentence_piece(_pieces(prefix=False))

    encoded = tokenizer.encode(text)

    assert encoded.tokens == _joined(text)
    assert tokenizer.decode(encoded.ids) == text


def test_a_space_is_put_in_front_where_the_model_wants_it() -> None:
    tokenizer = build_sentence_piece(_pieces(prefix=True))

    encoded = tokenizer.encode("ab")

    assert encoded.tokens == ["▁ab"]
    assert tokenizer.decode(encoded.ids) == "ab"


def test_pieces_of_the_user_are_matched_whole() -> None:
    """Two spaces would be joined to one piece, the line end to a byte."""
    tokenizer = build_sentence_piece(_pieces(prefix=False))

    assert tokenizer.encode("a  \nb").tokens == ["a", "  \n", "b"]


def test_a_score_for_each_token_is_required() -> None:
    metadata = _pieces(prefix=False)
    metadata["tokenizer.ggml.scores"] = [0.0]

    with pytest.raises(CorruptModel, match="tokens, 1 scores and 270 types"):
        build_sentence_piece(metadata)
