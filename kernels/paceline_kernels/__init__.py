"""The GPU kernels, each with its reference in plain torch beside it.

Every op runs its Triton kernel on CUDA tensors and its reference elsewhere, with one signature.
"""

from paceline_kernels.activation import (
    gelu_tanh_mul,
    gelu_tanh_mul_fp8,
    silu_mul,
    silu_mul_fp8,
)
from paceline_kernels.decode_attention import paged_decode_attention, plan_decode_attention
from paceline_kernels.embedding import embed_rms_norm
from paceline_kernels.fp8_rows import quantize_rows
from paceline_kernels.input_prep import keep_tokens, lay_out_draws, lay_out_step, write_rows
from paceline_kernels.int4 import int4_linear
from paceline_kernels.lora import add_adapters
from paceline_kernels.moe import fused_experts, route_experts
from paceline_kernels.norm import add_rms_norm, add_rms_norm_fp8, rms_norm
from paceline_kernels.prefill_attention import paged_prefill_attention
from paceline_kernels.quantized import quantized_linear
from paceline_kernels.rotary import rope_and_store_kv
from paceline_kernels.row_products import add_row_product, row_product
from paceline_kernels.sampling import forbid, penalise, sample_tokens, token_likelihoods

__version__ = "0.2.0"

__all__ = [
    "add_adapters",
    "add_rms_norm",
    "add_rms_norm_fp8",
    "add_row_product",
    "embed_rms_norm",
    "forbid",
    "fused_experts",
    "gelu_tanh_mul",
    "gelu_tanh_mul_fp8",
    "int4_linear",
    "keep_tokens",
    "lay_out_draws",
    "lay_out_step",
    "paged_decode_attention",
    "paged_prefill_attention",
    "penalise",
    "plan_decode_attention",
    "quantize_rows",
    "quantized_linear",
    "rms_norm",
    "rope_and_store_kv",
    "route_experts",
    "row_product",
    "sample_tokens",
    "silu_mul",
    "silu_mul_fp8",
    "token_likelihoods",
    "write_rows",
]
