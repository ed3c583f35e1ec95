"""The compiled ops as functions of tensors, with the checks that C does not make."""

from collections.abc import Sequence
from ctypes import CDLL, c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline_kernels.checks import Exponents
from paceline_kernels.cpu.block_matmul import BlockMatmul
from paceline_kernels.cpu.layers import Layer, LayersShape, NativeLayers
from paceline_kernels.cpu.library import Matmul, address, addresses, function, require
from paceline_kernels.fp8 import CODES, EXPONENTS

LANES = 16
"""Head sizes are multiples of it, and block sizes of pairs."""
MAX_HEADS = 256
MAX_GROUP = 32
"""Query heads that share a KV head: the lines of a tile of queries."""
MAX_PAIRED_HEAD_SIZE = 512

_TENSOR, _SIZE = c_void_p, c_int64
_EVERY_KEY = 1 << 62


class NativeOps:
    """Every tensor is contiguous, on the CPU, and float32 or bfloat16 as the op's first one.

    A KV cache of float32 is [num_blocks, block_size, num_kv_heads, head_size]. One of bfloat16
    holds pairs, as products take them: keys [num_blocks, num_kv_heads, head_size / 2, block_size,
    2], of two numbers of a key, and values [num_blocks, num_kv_heads, block_size / 2, head_size,
    2], of two keys. Codes of FP8 lie as float32 does, whatever the type of the queries.
    """

    def __init__(self, library: CDLL) -> None:
        self._rms_norm = function(library, "rms_norm", [_TENSOR] * 4 + [_SIZE] * 2 + [c_float])
        self._rms_norm_bf16 = function(
            library,
            "rms_norm_bf16",
            [_TENSOR] * 3 + [c_int, _TENSOR] + [_SIZE] * 2 + [c_float],
        )
        gated = [_TENSOR] * 2 + [_SIZE] * 2 + [c_int]
        self._gated_mul = _by_type(library, "gated_mul", gated)
        self._rope_and_store = function(
            library,
            "rope_and_store_kv",
            [_TENSOR] * 6 + [c_float] + [_TENSOR] * 4 + [_SIZE] * 4,
        )
        self._rope_and_store_bf16 = function(
            library,
            "rope_and_store_kv_bf16",
            [_TENSOR] * 6 + [c_int, c_float] + [_TENSOR] * 4 + [_SIZE] * 5,
        )
        attention = [_TENSOR] * 8 + [c_float] + [_SIZE] * 8
        self._decode = _by_type(library, "paged_decode_attention", attention, c_int)
        self._prompts = function(
            library, "paged_prompt_attention", [_TENSOR] * 7 + [c_float] + [_SIZE] * 8, c_int
        )
        self._prompts_bf16 = function(
            library, "paged_prompt_attention_bf16", [_TENSOR] * 9 + [c_float] + [_SIZE] * 8, c_int
        )
        self.matmul = Matmul(library)
        """Products with packed weights."""
        self.block_matmul = BlockMatmul(library)
        """Products with weights in GGUF's blocks."""
        self._likeliest = function(library, "likeliest", [_TENSOR] * 2 + [_SIZE] * 2)
        self._library = library

    def layers(self, shape: LayersShape, layers: Sequence[Layer], norm: Tensor) -> NativeLayers:
        """Put the layers of a decoder, and the norm behind them, into one call."""
        return NativeLayers(self._library, shape, layers, norm)

    def likeliest(self, logits: Tensor) -> Tensor:  # float32 [rows, vocab] -> int64 [rows]
        """Return each row's first largest logit; -1 if that is not finite or any logit is NaN."""
        rows, size = logits.shape
        require("logits", logits, (rows, size))
        tokens = torch.empty(rows, dtype=torch.int64)
        self._likeliest(logits.data_ptr(), tokens.data_ptr(), rows, size, torch.get_num_threads())
        return tokens

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension; `x` may be a view."""
        return self._norm(x.contiguous(), None, weight, eps)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """`(rms_norm(x + residual), x + residual)`; the sum is written over `x`."""
        require("residual", residual, x.shape, x.dtype)
        return self._norm(x, residual, weight, eps), x

    def embed_rms_norm(
        self,
        token_ids: Tensor,
        embedding: Tensor,
        weight: Tensor,
        eps: float,
        scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Gather and scale by torch, then norm."""
        residual = embedding[token_ids]
        if scale != 1.0:
            residual.mul_(scale)
        return self.rms_norm(residual, weight, eps), residual

    def _norm(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        size = x.shape[-1]
        require("x", x, x.shape, _float(x))
        out = torch.empty_like(x)
        rows, threads = x.numel() // size, torch.get_num_threads()
        ends = (out.data_ptr(), rows, size, eps, threads)
        starts = (x.data_ptr(), address(residual), weight.data_ptr())
        if x.dtype == torch.float32:
            require("weight", weight, (size,))
            self._rms_norm(*starts, *ends)
        else:
            require("weight", weight, (size,), _float(weight))
            self._rms_norm_bf16(*starts, weight.dtype == torch.float32, *ends)
        return out

    def silu_mul(self, x: Tensor) -> Tensor:
        """`silu(first half) * second half` of the last dimension."""
        return self._gated(x, is_gelu=False)

    def gelu_tanh_mul(self, x: Tensor) -> Tensor:
        """`gelu(first half) * second half`, with the tanh approximation."""
        return self._gated(x, is_gelu=True)

    def _gated(self, x: Tensor, *, is_gelu: bool) -> Tensor:
        rows, width = x.shape
        require("x", x, (rows, width // 2 * 2), _float(x))
        out = x.new_empty(rows, width // 2)
        threads = torch.get_num_threads()
        gate = self._gated_mul[x.dtype]
        gate(x.data_ptr(), out.data_ptr(), rows, width // 2, is_gelu, threads)
        return out

    def rope_and_store_kv(
        self,
        *,
        qkv: Tensor,  # [tokens, (num_q_heads + 2 * num_kv_heads) * head_size]
        positions: Tensor,  # int64 [tokens]
        slots: Tensor,  # int64 [tokens]
        cos_sin: Tensor,  # [max_len, head_size]
        norms: tuple[Tensor, Tensor] | None,  # of q and of k, each [head_size]
        eps: float,
        k_cache: Tensor,
        v_cache: Tensor,
        exponents: Exponents = None,  # of codes in FP8
    ) -> None:
        """Norm and rotate q in place; norm and rotate k, store it and v in their slots."""
        tokens, width = qkv.shape
        sizes = _sizes(k_cache, v_cache, exponents, qkv.dtype)
        num_kv_heads, head_size = sizes.num_kv_heads, sizes.head_size
        num_q_heads = width // head_size - 2 * num_kv_heads
        num_heads = num_q_heads + 2 * num_kv_heads
        require("qkv", qkv, (tokens, num_heads * head_size), _float(qkv))
        require("positions", positions, (tokens,), torch.int64)
        require("slots", slots, (tokens,), torch.int64)
        require("cos_sin", cos_sin, (len(cos_sin), head_size))
        if qkv.dtype == torch.bfloat16 and head_size > MAX_PAIRED_HEAD_SIZE:
            raise ValueError(f"cannot rotate heads of {head_size} in bfloat16")
        q_norm, k_norm = norms or (None, None)
        norm_dtype = torch.float32
        if q_norm is not None and qkv.dtype == torch.bfloat16:
            norm_dtype = _float(q_norm)
        for norm in norms or ():
            require("a norm", norm, (head_size,), norm_dtype)
        starts = (
            qkv.data_ptr(),
            positions.data_ptr(),
            slots.data_ptr(),
            cos_sin.data_ptr(),
            address(q_norm),
            address(k_norm),
        )
        caches = (k_cache.data_ptr(), v_cache.data_ptr(), *addresses(exponents))
        counts = (tokens, num_q_heads, num_kv_heads, head_size)
        threads = torch.get_num_threads()
        if qkv.dtype == torch.float32:
            self._rope_and_store(*starts, eps, *caches, *counts, threads)
            return
        is_wide = norm_dtype == torch.float32
        self._rope_and_store_bf16(
            *starts, is_wide, eps, *caches, *counts, sizes.block_size, threads
        )

    def paged_decode_attention(
        self,
        *,
        qkv: Tensor,  # [tokens, width]: each begins with its q, num_q_heads * head_size
        num_q_heads: int,
        k_cache: Tensor,
        v_cache: Tensor,
        exponents: Exponents = None,  # of codes in FP8
        block_table: Tensor,  # int32 [sequences, blocks]
        context_lens: Tensor,  # int32 [sequences]
        rows: int,
        out: Tensor,  # [tokens, num_q_heads * head_size]
        scale: float,
        window: int | None,
    ) -> None:
        """Attend from the first `rows` tokens, one a sequence, into the first rows of `out`.

        With a `window`, to the last so many keys.
        """
        tokens, width = qkv.shape
        sizes = _sizes(k_cache, v_cache, exponents, qkv.dtype)
        require("qkv", qkv, (tokens, width), _float(qkv))
        require("out", out, (tokens, num_q_heads * sizes.head_size), qkv.dtype)
        require("block_table", block_table, block_table.shape, torch.int32)
        require("context_lens", context_lens, (len(block_table),), torch.int32)
        if rows > min(tokens, len(block_table)):
            raise ValueError(f"rows must be within the tokens and sequences, got {rows}")
        _require_heads(num_q_heads, sizes, width, qkv.dtype)
        failed = self._decode[qkv.dtype](
            qkv.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            *addresses(exponents),
            block_table.data_ptr(),
            context_lens.data_ptr(),
            out.data_ptr(),
            scale,
            window or _EVERY_KEY,
            rows,
            width,
            block_table.shape[1],
            sizes.num_kv_heads,
            num_q_heads // sizes.num_kv_heads,
            sizes.head_size,
            sizes.block_size,
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("no memory for the scores of decode attention")

    def paged_prompt_attention(
        self,
        *,
        qkv: Tensor,  # [tokens, width]: each begins with its q, num_q_heads * head_size
        num_q_heads: int,
        k_cache: Tensor,
        v_cache: Tensor,
        exponents: Exponents = None,  # of codes in FP8, for queries in bfloat16
        block_table: Tensor,  # int32 [sequences, blocks]
        cu_seqlens: Tensor,  # int32 [sequences + 1]: the tokens of s are [cu[s], cu[s + 1])
        context_lens: Tensor,  # int32 [sequences]: keys that the last token of each sees
        out: Tensor,  # [tokens, num_q_heads * head_size]
        scale: float,
        window: int | None,
    ) -> None:
        """Attend from every token of the sequences to itself and those before it, into `out`.

        With a `window`, to the last so many keys. Rows of `out` of no sequence stay as they are.
        """
        tokens, width = qkv.shape
        sizes = _sizes(k_cache, v_cache, exponents, qkv.dtype)
        sequences = len(context_lens)
        require("qkv", qkv, (tokens, width), _float(qkv))
        require("out", out, (tokens, num_q_heads * sizes.head_size), qkv.dtype)
        require("block_table", block_table, (sequences, block_table.shape[1]), torch.int32)
        require("cu_seqlens", cu_seqlens, (sequences + 1,), torch.int32)
        require("context_lens", context_lens, (sequences,), torch.int32)
        _require_heads(num_q_heads, sizes, width, qkv.dtype)
        if num_q_heads > MAX_GROUP * sizes.num_kv_heads:
            raise ValueError(f"cannot attend with {num_q_heads // sizes.num_kv_heads} heads on one")
        starts = (qkv.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr())
        ends = (
            block_table.data_ptr(),
            cu_seqlens.data_ptr(),
            context_lens.data_ptr(),
            out.data_ptr(),
            scale,
            window or _EVERY_KEY,
            sequences,
            width,
            block_table.shape[1],
            sizes.num_kv_heads,
            num_q_heads // sizes.num_kv_heads,
            sizes.head_size,
            sizes.block_size,
            torch.get_num_threads(),
        )
        if qkv.dtype == torch.bfloat16:
            failed = self._prompts_bf16(*starts, *addresses(exponents), *ends)
        elif exponents is None:
            failed = self._prompts(*starts, *ends)
        else:
            raise ValueError("prompts in float32 do not read codes of FP8")
        if failed:
            raise MemoryError("no memory for the scores of prompt attention")


def _by_type(
    library: CDLL, name: str, arguments: list[Any], result: Any = None
) -> dict[torch.dtype, Any]:
    """Declare the float32 and bfloat16 functions of an op."""
    return {
        torch.float32: function(library, name, arguments, result),
        torch.bfloat16: function(library, f"{name}_bf16", arguments, result),
    }


def _float(tensor: Tensor) -> torch.dtype:
    """Return bfloat16 for a bfloat16 tensor, else float32."""
    return torch.bfloat16 if tensor.dtype == torch.bfloat16 else torch.float32


@dataclass(frozen=True, slots=True)
class _Sizes:
    block_size: int
    num_kv_heads: int
    head_size: int


def _sizes(k_cache: Tensor, v_cache: Tensor, exponents: Exponents, dtype: torch.dtype) -> _Sizes:
    """Look at a layer's keys and values, which queries of this type read."""
    if dtype == torch.bfloat16 and exponents is None:
        num_blocks, num_kv_heads, pairs, block_size, _ = k_cache.shape
        shape = (num_blocks, num_kv_heads, block_size // 2, 2 * pairs, 2)
        require("k_cache", k_cache, (*k_cache.shape[:4], 2), dtype)
        require("v_cache", v_cache, shape, dtype)
        return _Sizes(block_size, num_kv_heads, 2 * pairs)
    _, block_size, num_kv_heads, head_size = k_cache.shape
    stored = torch.float32 if exponents is None else CODES
    require("k_cache", k_cache, k_cache.shape, stored)
    require("v_cache", v_cache, k_cache.shape, stored)
    for each in exponents or ():
        require("exponents", each, k_cache.shape[:3], EXPONENTS)
    return _Sizes(block_size, num_kv_heads, head_size)


def _require_heads(num_q_heads: int, sizes: _Sizes, width: int, dtype: torch.dtype) -> None:
    """Heads of whole vectors, as many as there is room for, and their q in each token's row."""
    head_size, group = sizes.head_size, num_q_heads // sizes.num_kv_heads
    if num_q_heads * head_size > width:
        raise ValueError(f"qkv must hold {num_q_heads} heads of {head_size}, got {width}")
    if head_size % LANES or num_q_heads % sizes.num_kv_heads or num_q_heads > MAX_HEADS:
        raise ValueError(f"cannot attend with {num_q_heads} heads of {head_size}")
    if dtype == torch.bfloat16 and not can_pair(head_size, sizes.block_size, group):
        blocks = f"{group} heads of {head_size} on one in blocks of {sizes.block_size}"
        raise ValueError(f"cannot attend in bfloat16 with {blocks}")


def can_pair(head_size: int, block_size: int, group: int) -> bool:
    """Tell whether attention in bfloat16 is compiled for such heads and blocks."""
    has_size = head_size % LANES == 0 and head_size <= MAX_PAIRED_HEAD_SIZE
    return has_size and block_size % LANES == 0 and group <= MAX_GROUP
