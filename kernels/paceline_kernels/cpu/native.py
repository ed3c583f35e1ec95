"""The compiled ops as functions of tensors, with the checks that C does not make."""

from ctypes import CDLL, c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from paceline_kernels.checks import Exponents
from paceline_kernels.cpu.block_matmul import BlockMatmul
from paceline_kernels.cpu.library import (
    Matmul,
    address,
    addresses,
    function,
    require,
    require_caches,
)

LANES = 16
"""Head sizes are multiples of it."""
MAX_HEADS = 256
MAX_GROUP = 32
"""Query heads that share a KV head: the lines of a tile of queries."""

_TENSOR, _SIZE = c_void_p, c_int64
_EVERY_KEY = 1 << 62


class NativeOps:
    """Every tensor is contiguous, float32 unless said otherwise, and on the CPU."""

    def __init__(self, library: CDLL) -> None:
        self._rms_norm = function(library, "rms_norm", [_TENSOR] * 4 + [_SIZE] * 2 + [c_float])
        self._gated_mul = function(library, "gated_mul", [_TENSOR] * 2 + [_SIZE] * 2 + [c_int])
        self._rope_and_store = function(
            library,
            "rope_and_store_kv",
            [_TENSOR] * 6 + [c_float] + [_TENSOR] * 4 + [_SIZE] * 4,
        )
        self._decode = function(
            library, "paged_decode_attention", [_TENSOR] * 8 + [c_float] + [_SIZE] * 8, c_int
        )
        self._prompts = function(
            library, "paged_prompt_attention", [_TENSOR] * 7 + [c_float] + [_SIZE] * 8, c_int
        )
        self.matmul = Matmul(library)
        """Products with packed weights."""
        self.block_matmul = BlockMatmul(library)
        """Products with weights in GGUF's blocks."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension; `x` may be a view."""
        return self._norm(x.contiguous(), None, weight, eps)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """`(rms_norm(x + residual), x + residual)`; the sum is written over `x`."""
        require("residual", residual, x.shape)
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
        require("x", x, x.shape)
        require("weight", weight, (size,))
        out = torch.empty_like(x)
        self._rms_norm(
            x.data_ptr(),
            address(residual),
            weight.data_ptr(),
            out.data_ptr(),
            x.numel() // size,
            size,
            eps,
            torch.get_num_threads(),
        )
        return out

    def silu_mul(self, x: Tensor) -> Tensor:
        """`silu(first half) * second half` of the last dimension."""
        return self._gated(x, is_gelu=False)

    def gelu_tanh_mul(self, x: Tensor) -> Tensor:
        """`gelu(first half) * second half`, with the tanh approximation."""
        return self._gated(x, is_gelu=True)

    def _gated(self, x: Tensor, *, is_gelu: bool) -> Tensor:
        rows, width = x.shape
        require("x", x, (rows, width // 2 * 2))
        out = x.new_empty(rows, width // 2)
        threads = torch.get_num_threads()
        self._gated_mul(x.data_ptr(), out.data_ptr(), rows, width // 2, is_gelu, threads)
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
        k_cache: Tensor,  # [num_blocks, block_size, num_kv_heads, head_size]
        v_cache: Tensor,  # as k_cache
        exponents: Exponents = None,  # of codes in FP8
    ) -> None:
        """Norm and rotate q in place; norm and rotate k, store it and v in their slots."""
        tokens, width = qkv.shape
        _, _, num_kv_heads, head_size = k_cache.shape
        num_q_heads = width // head_size - 2 * num_kv_heads
        require("qkv", qkv, (tokens, (num_q_heads + 2 * num_kv_heads) * head_size))
        require("positions", positions, (tokens,), torch.int64)
        require("slots", slots, (tokens,), torch.int64)
        require("cos_sin", cos_sin, (len(cos_sin), head_size))
        for norm in norms or ():
            require("a norm", norm, (head_size,))
        require_caches(k_cache, v_cache, exponents)
        q_norm, k_norm = norms or (None, None)
        self._rope_and_store(
            qkv.data_ptr(),
            positions.data_ptr(),
            slots.data_ptr(),
            cos_sin.data_ptr(),
            address(q_norm),
            address(k_norm),
            eps,
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            *addresses(exponents),
            tokens,
            num_q_heads,
            num_kv_heads,
            head_size,
            torch.get_num_threads(),
        )

    def paged_decode_attention(
        self,
        *,
        qkv: Tensor,  # [tokens, width]: each begins with its q, num_q_heads * head_size
        num_q_heads: int,
        k_cache: Tensor,  # [num_blocks, block_size, num_kv_heads, head_size]
        v_cache: Tensor,  # as k_cache
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
        _, block_size, num_kv_heads, head_size = k_cache.shape
        require("qkv", qkv, (tokens, width))
        require_caches(k_cache, v_cache, exponents)
        require("out", out, (tokens, num_q_heads * head_size))
        require("block_table", block_table, block_table.shape, torch.int32)
        require("context_lens", context_lens, (len(block_table),), torch.int32)
        if rows > min(tokens, len(block_table)):
            raise ValueError(f"rows must be within the tokens and sequences, got {rows}")
        _require_heads(num_q_heads, num_kv_heads, head_size, width)
        failed = self._decode(
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
            num_kv_heads,
            num_q_heads // num_kv_heads,
            head_size,
            block_size,
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("no memory for the scores of decode attention")

    def paged_prompt_attention(
        self,
        *,
        qkv: Tensor,  # [tokens, width]: each begins with its q, num_q_heads * head_size
        num_q_heads: int,
        k_cache: Tensor,  # [num_blocks, block_size, num_kv_heads, head_size]
        v_cache: Tensor,  # as k_cache
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
        _, block_size, num_kv_heads, head_size = k_cache.shape
        sequences = len(context_lens)
        require("qkv", qkv, (tokens, width))
        require_caches(k_cache, v_cache)
        require("out", out, (tokens, num_q_heads * head_size))
        require("block_table", block_table, (sequences, block_table.shape[1]), torch.int32)
        require("cu_seqlens", cu_seqlens, (sequences + 1,), torch.int32)
        require("context_lens", context_lens, (sequences,), torch.int32)
        _require_heads(num_q_heads, num_kv_heads, head_size, width)
        if num_q_heads // num_kv_heads > MAX_GROUP:
            raise ValueError(f"cannot attend with {num_q_heads // num_kv_heads} heads on one")
        failed = self._prompts(
            qkv.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            block_table.data_ptr(),
            cu_seqlens.data_ptr(),
            context_lens.data_ptr(),
            out.data_ptr(),
            scale,
            window or _EVERY_KEY,
            sequences,
            width,
            block_table.shape[1],
            num_kv_heads,
            num_q_heads // num_kv_heads,
            head_size,
            block_size,
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("no memory for the scores of prompt attention")


def _require_heads(num_q_heads: int, num_kv_heads: int, head_size: int, width: int) -> None:
    """Heads of whole vectors, as many as there is room for, and their q in each token's row."""
    if num_q_heads * head_size > width:
        raise ValueError(f"qkv must hold {num_q_heads} heads of {head_size}, got {width}")
    if head_size % LANES or num_q_heads % num_kv_heads or num_q_heads > MAX_HEADS:
        raise ValueError(f"cannot attend with {num_q_heads} heads of {head_size}")
