"""A GGUF file's weights as they are stored: the dequantised model, in the file's memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.gguf_file import GgufTensors
from paceline_engine.checkpoint.stored_weights import KEPT, StoredTensor, kept_bytes
from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.errors import BadSettings, UnsupportedModel
from paceline_engine.loading import memory
from paceline_engine.loading.device import HostMachine, VisibleGpu, choose_device
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.model.layers.block_linear import (
    BlockGatedLinear,
    BlockLinear,
    JoinedLinear,
    StoredEmbedding,
)
from paceline_engine.model.layers.fused_ops import Mlp
from paceline_engine.model.layers.lora_linear import LoraLinear
from paceline_engine.settings import Quantization, Settings
from paceline_kernels.cpu import BLOCK_KINDS, native_ops
from paceline_testing.embedded_model import Divergences
from paceline_testing.random_blocks import random_blocks, values_of
from paceline_testing.tiny_gguf import Kinds, write_tiny_gguf
from paceline_testing.tiny_model import Family, make_tiny_model
from paceline_wire import Sampling

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
F32, Q4_0, Q8_0 = (GGMLQuantizationType[kind] for kind in ("F32", "Q4_0", "Q8_0"))

pytestmark = pytest.mark.skipif(native_ops() is None, reason="no C compiler here")


def _mixed(name: str) -> GGMLQuantizationType:
    """As llama.cpp mixes them: v in more bits than q and k, and the ends in 8."""
    if "attn_v" in name:
        return GGMLQuantizationType.Q5_0
    return Q8_0 if "blk." not in name else GGMLQuantizationType.Q4_1


def _some_floats(name: str) -> GGMLQuantizationType:
    """A file may leave a weight of those that are multiplied as one in 16 bits."""
    if "ffn_up" in name or "token_embd" in name:
        return GGMLQuantizationType.F16
    return GGMLQuantizationType.BF16 if "attn_k" in name else Q8_0


KINDS: dict[str, Kinds] = {"one": lambda _name: Q8_0, "mixed": _mixed, "floats": _some_floats}


def _write(folder: Path, family: Family, kinds: Kinds, **config: Any) -> Path:
    make_tiny_model(folder, family, **SIZES | config)
    write_tiny_gguf(folder, folder / "tiny.gguf", kinds)
    return folder / "tiny.gguf"


def _load(path: Path, quantization: Quantization, **settings: Any) -> LoadedModel:
    chosen = Settings.model_validate(
        {
            "model_uri": f"file://{path}",
            "device": "cpu",
            "dtype": "float32",
            "threads": 1,
            "kv_cache_bytes": 1 << 22,
            "quantization": quantization,
            **settings,
        }
    )
    return load_model(chosen, lambda _stage, _fraction: None)


def _logits(loaded: LoadedModel) -> Tensor:
    token_ids = torch.randint(300, (30,), generator=torch.Generator().manual_seed(3)).tolist()
    sampling = Sampling(max_tokens=1, temperature=0.0)
    request = Request("r", token_ids, 30, sampling, row=0, block_ids=[1, 2])
    chunk = ScheduledChunk(request, 0, 30, samples=True, is_decode=False)
    return loaded.runner.logits(Batch((chunk,), num_decodes=0)).float()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3_text"])
def test_a_models_logits_stay_near_those_of_its_dequantised_weights(
    tmp_path: Path, family: Family, kinds: Kinds, dtype: str
) -> None:
    """Only what is multiplied loses anything: a byte each, which random weights make much of."""
    path = _write(tmp_path, family, kinds)

    exact = _logits(_load(path, "none", dtype="float32"))
    near = _logits(_load(path, "as_stored", dtype=dtype))

    error = float((near - exact).norm() / exact.norm())
    assert 1e-4 < error < 0.2, error


def test_blocks_are_the_files_rows_in_our_order(tmp_path: Path) -> None:
    """Llama's converter reorders the rows of q and k."""
    tensors = open_checkpoint(_write(tmp_path, "llama", KINDS["mixed"])).tensors
    assert isinstance(tensors, GgufTensors)

    for part in ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"):
        name = f"model.layers.1.{part}.weight"
        blocks = tensors.read_blocks(name)

        assert blocks is not None
        assert torch.equal(values_of(blocks).float(), tensors.read(name))


def test_weights_take_what_is_reported(tmp_path: Path) -> None:
    """The file's bytes; the last panel of each weight is filled up."""
    loaded = _load(_write(tmp_path, "qwen3", KINDS["mixed"], vocab_size=320), "as_stored")

    decoder = loaded.runner._decoder
    assert isinstance(decoder.embedding, StoredEmbedding)
    assert isinstance(decoder.head, BlockLinear)
    held = decoder.embedding.weight.packed.nbytes + decoder.head.weight.packed.nbytes
    held += decoder.norm.nbytes
    for layer in decoder.layers:
        norms = [layer.qkv.weight, layer.mlp.weight, layer.q_norm, layer.k_norm]
        held += sum(norm.nbytes for norm in norms if norm is not None)
        mlp = layer.mlp.product
        assert isinstance(mlp, Mlp)
        for product in (layer.qkv.product, layer.out, mlp.gated, mlp.down):
            assert isinstance(product, BlockLinear | BlockGatedLinear)
            held += product.weight.packed.nbytes
    assert loaded.info.weight_bytes == held


def test_a_file_that_fits_only_as_it_is_stored_is_told_so() -> None:
    tensors = [StoredTensor("blk.0.ffn_up.weight", "Q4_K", (64, 256))]
    kept = kept_bytes(tensors, 4)
    config: Any = None  # not looked at where the file tells

    memory.require_weights_fit(
        config, torch.float32, "as_stored", memory.DeviceMemory(1 << 30, kept), kept=kept
    )

    assert kept == 64 * 148
    assert kept_bytes(tensors, 4, ranks=2) == kept // 2
    assert kept_bytes([replace(tensors[0], kind="F16")], 4) == 4 * 64 * 256


def test_the_table_of_kinds_is_that_of_the_product() -> None:
    """`paceline plan` counts without torch, so the table stands twice."""
    ops = native_ops()
    assert ops is not None
    assert tuple(KEPT) == BLOCK_KINDS

    for kind in BLOCK_KINDS:
        packed = ops.block_matmul.pack([random_blocks(kind, 64, 512)]).packed.nbytes
        assert packed == kept_bytes([StoredTensor("w", kind, (64, 512))], 4)


def test_a_head_of_the_embeddings_blocks_is_held_once(tmp_path: Path) -> None:
    loaded = _load(_write(tmp_path, "llama", KINDS["one"], tie_word_embeddings=True), "as_stored")

    assert loaded.runner._decoder.head is loaded.runner._decoder.embedding


def test_kinds_that_differ_are_one_product_and_floats_another(tmp_path: Path) -> None:
    mixed, floats = (
        _load(_write(tmp_path, "llama", KINDS[kinds]), "as_stored").runner._decoder.layers[0]
        for kinds in ("mixed", "floats")
    )

    assert isinstance(mixed.qkv.product, BlockLinear)
    assert isinstance(floats.qkv.product, JoinedLinear)
    assert [type(each).__name__ for each in floats.qkv.product.products] == [
        "BlockLinear",
        "NativeLinear",
        "BlockLinear",
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3_text"])
def test_one_call_for_every_layer_computes_what_the_ops_compute(
    tmp_path: Path, family: Family, dtype: str
) -> None:
    """To the last bit: whoever calls the products, they are the same."""
    loaded = _load(_write(tmp_path, family, KINDS["mixed"]), "as_stored", dtype=dtype)
    assert loaded.runner.layer_stack is not None

    together = _logits(loaded)
    loaded.runner.layer_stack = None

    assert torch.equal(_logits(loaded), together)


def test_adapters_add_to_products_of_blocks(tmp_path: Path) -> None:
    loaded = _load(_write(tmp_path, "llama", KINDS["mixed"]), "as_stored", max_loras=2)

    assert isinstance(loaded.runner._decoder.layers[0].qkv.product, LoraLinear)
    assert loaded.adapters is not None


@pytest.mark.parametrize("kinds", ["one", "mixed"])
def test_ranks_each_hold_a_part_of_the_blocks(tmp_path: Path, kinds: str) -> None:
    """Rows of q, k, v, gate and up; inputs of the products after them.

    Sums of ranks are rounded in another order, which may move a byte by one.
    """
    path = _write(tmp_path, "llama", KINDS[kinds], intermediate_size=128)
    alone, both = (_load(path, "as_stored", tensor_parallel_size=ranks) for ranks in (1, 2))
    try:
        seen, wanted = _logits(both), _logits(alone)
        assert (seen - wanted).norm() < 0.02 * wanted.norm()
    finally:
        both.group.close()


def test_ranks_cut_no_block(tmp_path: Path) -> None:
    """96 inputs are three blocks."""
    path = _write(tmp_path, "llama", KINDS["one"])

    with pytest.raises(BadSettings, match="TENSOR_PARALLEL_SIZE is 2, which cuts the 96 inputs"):
        _load(path, "as_stored", tensor_parallel_size=2)


def test_a_model_that_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, "llama")

    with pytest.raises(BadSettings, match="QUANTIZATION is as_stored, which keeps a GGUF file's"):
        _load(tmp_path, "as_stored")


def test_a_kind_that_is_not_multiplied_as_it_is_is_refused(tmp_path: Path) -> None:
    """Before anything is loaded: dequantised, it might not fit."""

    def kinds(name: str) -> GGMLQuantizationType:
        return GGMLQuantizationType.TQ2_0 if "ffn_down" in name else Q8_0

    path = _write(tmp_path, "llama", kinds, intermediate_size=256)

    with pytest.raises(UnsupportedModel, match=r"tensor blk\.0\.ffn_down\.weight is of type TQ2_0"):
        _load(path, "as_stored")


@pytest.mark.parametrize("name", ["quantization", "draft_quantization"])
def test_a_gpu_is_refused(name: str) -> None:
    machine = HostMachine((VisibleGpu("H100", (9, 0)),), "12.8", True, "570", "", False)
    draft = {"speculative": "draft", "draft_model_uri": "file:///d"} if "draft" in name else {}

    with pytest.raises(BadSettings, match=f"{name.upper()} is as_stored, whose products are for"):
        choose_device(Settings.model_validate({name: "as_stored", **draft}), machine)


def test_half_floats_are_refused() -> None:
    with pytest.raises(ValueError, match="float32 or bfloat16 where quantization is as_stored"):
        Settings(quantization="as_stored", dtype="float16")


def test_a_draft_model_may_be_as_stored(tmp_path: Path) -> None:
    """Alone: the model stays in float32."""
    path = _write(tmp_path, "llama", KINDS["mixed"])

    loaded = _load(
        path,
        "none",
        speculative="draft",
        draft_model_uri=f"file://{path}",
        draft_quantization="as_stored",
    )

    assert loaded.draft is not None
    assert loaded.draft.info.weight_bytes < loaded.info.weight_bytes / 3


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_embedded_model_hardly_changes_its_mind(
    embedded_model: LoadedModel, divergences: Divergences, dtype: str
) -> None:
    """Its file is Q4_1 with ends of Q8_0: less than a fifth of the bytes in float32."""
    settings = Settings.model_validate(
        {
            "device": "cpu",
            "threads": 1,
            "quantization": "as_stored",
            "kv_cache_bytes": 1 << 26,
            "dtype": dtype,
        }
    )
    near = load_model(settings, lambda _stage, _fraction: None)

    found = divergences(near)

    assert embedded_model.info.weight_bytes > 5 * near.info.weight_bytes
    assert sum(found) / len(found) < 0.02, found
