import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import paceline_kernels
from paceline_kernels import (
    activation,
    decode_attention,
    embedding,
    fp8_rows,
    input_prep,
    int4,
    lora,
    moe,
    norm,
    prefill_attention,
    quantized,
    rotary,
    row_products,
    sampling,
)
from paceline_kernels.activation import kernel as activation_kernel
from paceline_kernels.decode_attention import kernel as decode_kernel
from paceline_kernels.dispatch import by_device, launcher
from paceline_kernels.embedding import kernel as embedding_kernel
from paceline_kernels.fp8_rows import kernel as fp8_rows_kernel
from paceline_kernels.input_prep import kernel as input_kernel
from paceline_kernels.int4 import kernel as int4_kernel
from paceline_kernels.lora import kernel as lora_kernel
from paceline_kernels.moe import kernel as moe_kernel
from paceline_kernels.norm import kernel as norm_kernel
from paceline_kernels.prefill_attention import kernel as prefill_kernel
from paceline_kernels.quantized import kernel as quantized_kernel
from paceline_kernels.rotary import kernel as rotary_kernel
from paceline_kernels.row_products import kernel as row_products_kernel
from paceline_kernels.sampling import kernel as sampling_kernel

OPS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add_adapters": (lora.reference_add_adapters, lora_kernel.add_adapters),
    "add_rms_norm": (norm.reference_add_rms_norm, norm_kernel.add_rms_norm),
    "add_rms_norm_fp8": (norm.reference_add_rms_norm_fp8, norm_kernel.add_rms_norm_fp8),
    "add_row_product": (
        row_products.reference_add_row_product,
        row_products_kernel.add_row_product,
    ),
    "embed_rms_norm": (embedding.reference_embed_rms_norm, embedding_kernel.embed_rms_norm),
    "fused_experts": (moe.reference_fused_experts, moe_kernel.fused_experts),
    "route_experts": (moe.reference_route_experts, moe_kernel.route_experts),
    "gelu_tanh_mul": (activation.reference_gelu_tanh_mul, activation_kernel.gelu_tanh_mul),
    "gelu_tanh_mul_fp8": (
        activation.reference_gelu_tanh_mul_fp8,
        activation_kernel.gelu_tanh_mul_fp8,
    ),
    "int4_linear": (int4.reference_int4_linear, int4_kernel.int4_linear),
    "keep_tokens": (input_prep.reference_keep_tokens, input_kernel.keep_tokens),
    "lay_out_draws": (input_prep.reference_lay_out_draws, input_kernel.lay_out_draws),
    "lay_out_step": (input_prep.reference_lay_out_step, input_kernel.lay_out_step),
    "quantize_rows": (fp8_rows.reference_quantize_rows, fp8_rows_kernel.quantize_rows),
    "quantized_linear": (quantized.reference_quantized_linear, quantized_kernel.quantized_linear),
    "paged_decode_attention": (
        decode_attention.reference_paged_decode_attention,
        decode_kernel.paged_decode_attention,
    ),
    "paged_prefill_attention": (
        prefill_attention.reference_paged_prefill_attention,
        prefill_kernel.paged_prefill_attention,
    ),
    "plan_decode_attention": (
        decode_attention.reference_plan_decode_attention,
        decode_kernel.plan_decode_attention,
    ),
    "rms_norm": (norm.reference_rms_norm, norm_kernel.rms_norm),
    "rope_and_store_kv": (rotary.reference_rope_and_store_kv, rotary_kernel.rope_and_store_kv),
    "row_product": (row_products.reference_row_product, row_products_kernel.row_product),
    "forbid": (sampling.reference_forbid, sampling_kernel.forbid),
    "penalise": (sampling.reference_penalise, sampling_kernel.penalise),
    "token_likelihoods": (
        sampling.reference_token_likelihoods,
        sampling_kernel.token_likelihoods,
    ),
    "sample_tokens": (sampling.reference_sample_tokens, sampling_kernel.sample_tokens),
    "silu_mul": (activation.reference_silu_mul, activation_kernel.silu_mul),
    "silu_mul_fp8": (activation.reference_silu_mul_fp8, activation_kernel.silu_mul_fp8),
    "write_rows": (input_prep.reference_write_rows, input_kernel.write_rows),
}


def test_these_are_all_the_ops() -> None:
    """An op that is added here is added to the tests below."""
    assert sorted(OPS) == paceline_kernels.__all__


@pytest.mark.parametrize("op", OPS)
def test_kernel_and_reference_take_the_same_arguments(op: str) -> None:
    """They are looked up by name, so no type checker compares them."""
    reference, kernel = OPS[op]

    assert inspect.signature(kernel) == inspect.signature(reference)


@pytest.mark.parametrize("op", OPS)
def test_each_reference_finds_its_kernel(op: str) -> None:
    """This is what a tensor on a GPU gets."""
    reference, kernel = OPS[op]

    assert launcher(reference) is kernel


def test_the_device_of_the_first_tensor_decides() -> None:
    """A CPU tensor gets the reference, with arguments by place and by name."""
    seen = []

    def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> float:
        seen.append(x)
        return weight.item() + eps

    x = torch.zeros(1)

    assert by_device(rms_norm)(x, torch.tensor(2.0), eps=1.0) == 3
    assert seen == [x]


@pytest.mark.parametrize("is_hidden", [False, True], ids=["triton installed", "triton missing"])
def test_a_cpu_never_imports_triton(is_hidden: bool) -> None:
    """The import takes a second and much memory, and there are machines without it."""
    script = f"""
import sys
if {is_hidden}:
    sys.modules["triton"] = None
import torch
import paceline_kernels as kernels
from paceline_kernels.dispatch import launcher
from paceline_kernels.norm import reference_rms_norm
x = torch.ones(2, 8)
kernels.silu_mul(kernels.rms_norm(x, x[0], 1e-5))
if {is_hidden}:
    assert launcher(reference_rms_norm) is reference_rms_norm
else:
    assert "triton" not in sys.modules
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )

    assert run.returncode == 0, run.stderr
