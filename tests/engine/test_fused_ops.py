"""What norms and gates hand to the products behind them: rows, or codes of FP8."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.loading.weights import Wrap, as_it_is, build_decoder
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.group import Group
from paceline_engine.model.layers import fp8_rows
from paceline_engine.model.layers.fused_ops import Gates, gated_mlp, normed, takes_codes
from paceline_engine.model.layers.linear import Linear, PlainLinear
from paceline_engine.model.layers.lora_linear import LoraLinear, TokenSlots
from paceline_engine.model.layers.quantized_linear import DynamicFp8Linear, quantize
from paceline_engine.model.ops import KernelOps
from paceline_engine.model.sharding import SummedLinear
from paceline_engine.settings import Quantization
from paceline_kernels import add_rms_norm, gelu_tanh_mul, silu_mul
from paceline_testing.tiny_model import Family, make_tiny_model

EPS = 1e-5
CPU = torch.device("cpu")


class NoAttention:
    """Attends to nothing: gives the queries as they come."""

    def __init__(self, config: ModelConfig) -> None:
        self._size = config.num_q_heads * config.head_size

    def attend(
        self,
        layer: int,  # noqa: ARG002 - the port's
        qkv: Tensor,
        q_norm: Tensor | None,  # noqa: ARG002 - the port's
        k_norm: Tensor | None,  # noqa: ARG002 - the port's
    ) -> Tensor:
        return qkv[:, : self._size].contiguous()


def a_random(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def dynamic(outputs: int, inputs: int, seed: int = 0) -> DynamicFp8Linear:
    return DynamicFp8Linear(quantize(a_random(outputs, inputs, seed=seed), "fp8_dynamic"))


def refuse(*_args: Any) -> Any:
    raise AssertionError("these rows need not be made")


def apart(_prefix: str, _parts: dict[str, int], _num_inputs: int, product: Linear) -> Linear:
    """As an adapter that adds nothing: it takes rows, and hands them on."""
    return partial(product.__call__)


def a_decoder(
    folder: Path, quantization: Quantization = "fp8_dynamic", wrap: Wrap = as_it_is
) -> Decoder:
    """A tiny model with the ops of a GPU: their references, here."""
    checkpoint = open_checkpoint(folder)
    with torch.inference_mode():
        return build_decoder(
            checkpoint.config,
            checkpoint.tensors,
            KernelOps(),
            device=CPU,
            dtype=torch.float32,
            progress=lambda _fraction: None,
            quantization=quantization,
            wrap=wrap,
        )


def states(decoder: Decoder) -> Tensor:
    token_ids = torch.randint(300, (30,), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        return decoder.hidden(token_ids, NoAttention(decoder.config), torch.tensor([4, 29]))


@pytest.mark.parametrize("features", [80, 72], ids=["", "down takes rows"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gemma3_text"])
def test_codes_that_are_handed_over_are_those_of_rows(
    tmp_path: Path, family: Family, features: int
) -> None:
    """Bit for bit, with biases, norms from 1, norms after the products, and either gate."""
    make_tiny_model(tmp_path, family, head_dim=16, intermediate_size=features)
    fused, in_turn = a_decoder(tmp_path), a_decoder(tmp_path, wrap=apart)

    assert all(takes_codes(layer.qkv.product) for layer in fused.layers)
    assert all(takes_codes(layer.mlp.product) for layer in fused.layers)
    assert not any(takes_codes(layer.qkv.product) for layer in in_turn.layers)
    assert torch.equal(states(fused), states(in_turn))


@pytest.mark.parametrize("quantization", ["none", "int8", "fp8"])
def test_products_of_floats_take_rows(tmp_path: Path, quantization: Quantization) -> None:
    make_tiny_model(tmp_path, "llama", head_dim=16)

    for layer in a_decoder(tmp_path, quantization).layers:
        assert not takes_codes(layer.qkv.product)
        assert not takes_codes(layer.mlp.product)


def test_the_norm_before_a_product_of_codes_makes_no_rows() -> None:
    """Nobody else would read them."""
    x, residual, weight = (a_random(*sizes) for sizes in ((3, 48), (3, 48), (48,)))
    product = dynamic(64, 48)

    y, total = normed(weight, EPS, refuse, product)(x, residual)

    rows, wanted = add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(y, product(rows))
    assert torch.equal(total, wanted)


@pytest.mark.parametrize(
    ("codes", "gate"),
    [(fp8_rows.silu_mul, silu_mul), (fp8_rows.gelu_tanh_mul, gelu_tanh_mul)],
    ids=["silu", "gelu"],
)
def test_the_gate_before_a_product_of_codes_makes_no_rows(codes: Any, gate: Any) -> None:
    """Also where several ranks share the product: each has a scale for its own features."""
    product, down = PlainLinear(a_random(128, 48)), dynamic(48, 64, seed=1)
    x = a_random(3, 48, seed=2)

    for behind in (down, SummedLinear(down, Group())):
        mlp = gated_mlp(product, Gates(refuse, codes), behind)

        assert torch.equal(mlp(x), down(gate(product(x))))


def test_the_gate_before_a_product_of_rows_makes_no_codes() -> None:
    """An adapter's product is no product of codes."""
    product, down = dynamic(128, 48), PlainLinear(a_random(48, 64))
    x = a_random(3, 48, seed=2)

    mlp = gated_mlp(product, Gates(silu_mul, refuse), down)

    assert torch.equal(mlp(x), down(silu_mul(product(x))))


def lora(base: DynamicFp8Linear, slots: TokenSlots) -> LoraLinear:
    """Let adapters add to a product; its slots are empty."""
    outputs, inputs = base.weight.values.shape
    product = LoraLinear(base, {"all": outputs}, inputs, slots)
    product.reserve(2, 4, like=torch.empty(0))
    return product


def test_what_adapters_may_add_to_takes_codes_until_one_does() -> None:
    """Until then nobody reads the rows; from then on adapters do, and the rest is the same."""
    x, residual, weight = (a_random(*sizes) for sizes in ((3, 48), (3, 48), (48,)))
    slots, made = TokenSlots(), [dynamic(128, 48), dynamic(48, 64, seed=1)]
    asked: list[str] = []

    def norm(*args: Any) -> Any:
        asked.append("norm")
        return add_rms_norm(*args)

    def gate(rows: Tensor) -> Tensor:
        asked.append("gate")
        return silu_mul(rows)

    gates = Gates(gate, fp8_rows.silu_mul)
    mlp = normed(weight, EPS, norm, gated_mlp(lora(made[0], slots), gates, lora(made[1], slots)))
    qkv = normed(weight, EPS, norm, lora(made[0], slots))

    without = [*mlp(x, residual), *qkv(x, residual)]
    assert not asked
    slots.of_tokens = torch.tensor([0, -1, 1])
    with_empty_slots = [*mlp(x, residual), *qkv(x, residual)]

    assert asked == ["norm", "gate", "norm"]
    for seen, wanted in zip(with_empty_slots, without, strict=True):
        assert torch.equal(seen, wanted)
