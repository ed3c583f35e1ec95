"""Every launcher called as the engine does, on small tensors: for who compiles and no more."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_kernels.activation.kernel import (
    gelu_tanh_mul,
    gelu_tanh_mul_fp8,
    silu_mul,
    silu_mul_fp8,
)
from paceline_kernels.checks import Exponents
from paceline_kernels.decode_attention.kernel import paged_decode_attention
from paceline_kernels.embedding.kernel import embed_rms_norm
from paceline_kernels.fp8 import CODES, EXPONENTS
from paceline_kernels.fp8_rows.kernel import quantize_rows
from paceline_kernels.input_prep.kernel import (
    keep_tokens,
    lay_out_draws,
    lay_out_step,
    write_rows,
)
from paceline_kernels.int4.kernel import int4_linear
from paceline_kernels.int4.layout import BLOCK_IN, WORDS
from paceline_kernels.lora.kernel import add_adapters
from paceline_kernels.moe.kernel import fused_experts, route_experts
from paceline_kernels.norm.kernel import add_rms_norm, add_rms_norm_fp8, rms_norm
from paceline_kernels.prefill_attention.kernel import paged_prefill_attention
from paceline_kernels.quantized.kernel import quantized_linear
from paceline_kernels.rotary.kernel import rope_and_store_kv
from paceline_kernels.row_products import Gate, RowNorm
from paceline_kernels.row_products.kernel import add_row_product, row_product
from paceline_kernels.sampling.kernel import (
    forbid,
    penalise,
    sample_tokens,
    token_likelihoods,
)

_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that a kernel is compiled for."""

    name: str
    hidden: int
    features: int
    num_q_heads: int
    num_kv_heads: int
    head_size: int
    has_qk_norm: bool = False
    is_gemma: bool = False
    """Norms with float32 weights, GELU, a window and a soft cap."""
    dtype: torch.dtype = torch.bfloat16
    has_fp8: bool = False
    """Keys and values are FP8."""
    vocab: int = 128_256


SHAPES = (
    Shape("smollm2-135m", 576, 1536, 9, 3, 64, vocab=49_152),
    Shape("llama-3.1-8b", 4096, 14336, 32, 8, 128),
    Shape("qwen3-0.6b", 1024, 3072, 16, 8, 128, has_qk_norm=True, vocab=151_936),
    Shape("head-96", 3072, 8192, 32, 32, 96, vocab=50_257),
    Shape("head-256", 2560, 10240, 8, 4, 256),
    Shape("gemma-3-4b", 2560, 10240, 8, 4, 256, has_qk_norm=True, is_gemma=True, vocab=262_144),
    Shape("smollm2-fp8", 576, 1536, 9, 3, 64, has_fp8=True),
    Shape("llama-fp8", 4096, 14336, 32, 8, 128, has_fp8=True),
    Shape("qwen3-fp8", 1024, 3072, 16, 8, 128, has_qk_norm=True, has_fp8=True),
    Shape("head-96-fp8", 3072, 8192, 32, 32, 96, has_fp8=True),
    Shape("gemma-fp8", 2560, 10240, 8, 4, 256, has_qk_norm=True, is_gemma=True, has_fp8=True),
    Shape("llama-f16-fp8", 4096, 14336, 32, 8, 128, dtype=torch.float16, has_fp8=True),
)


@dataclass(frozen=True, slots=True)
class Launches:
    """The launchers of one shape, for a step of so many rows."""

    shape: Shape
    rows: int = 3
    max_blocks: int = 256

    def all(self) -> None:
        """Call every one."""
        self.rms_norm()
        self.embed_rms_norm()
        self.quantized_linear()
        self.row_product()
        self.lora()
        self.int4_linear()
        self.route_experts()
        self.fused_experts()
        self.gate_mul()
        self.gate_mul_fp8()
        self.quantize_rows()
        self.input_prep()
        self.rope_and_store_kv()
        self.decode_attention()
        self.prefill_attention()
        self.sample_tokens()
        self.adjust_scores()

    def rms_norm(self) -> None:
        """With a residual and without, and into FP8."""
        x, weight = self._floats(self.rows, self.shape.hidden), self._norm(self.shape.hidden)
        rms_norm(x, weight, 1e-5)
        add_rms_norm(x, x, weight, 1e-5)
        add_rms_norm_fp8(x, x, weight, 1e-5)

    def embed_rms_norm(self) -> None:
        """With a scale, as Gemma has one."""
        embedding, weight = self._floats(10, self.shape.hidden), self._norm(self.shape.hidden)
        embed_rms_norm(self._ints(self.rows, dtype=torch.int64), embedding, weight, 1e-5, 2.0)

    def quantized_linear(self) -> None:
        """In INT8, or in FP8 where keys and values are."""
        dtype = CODES if self.shape.has_fp8 else torch.int8
        weight = torch.empty(self.shape.hidden, self.shape.features, dtype=dtype)
        x = self._floats(self.rows, self.shape.features)
        quantized_linear(x, weight, torch.zeros(self.shape.hidden))

    def row_product(self) -> None:
        """The four of a layer, as a step of decodes has them; queries have a bias."""
        shape, rows = self.shape, self.rows
        num_heads = shape.num_q_heads + 2 * shape.num_kv_heads
        qkv, attended = (n * shape.head_size for n in (num_heads, shape.num_q_heads))
        hidden, features = shape.hidden, shape.features
        squares = torch.zeros(-(-hidden // 128), rows)
        norm = RowNorm(self._norm(hidden), squares, 1e-5)
        x, gate = self._floats(rows, hidden), _gate_of(shape)
        row_product(x, self._floats(qkv, hidden), self._floats(qkv), norm)
        add_row_product(self._floats(rows, attended), self._floats(hidden, attended), x)
        row_product(x, self._floats(2 * features, hidden), None, norm, gate)
        add_row_product(self._floats(rows, features), self._floats(hidden, features), x)

    def lora(self) -> None:
        """Add what adapters add to q, k and v, each token its own."""
        shape, rank, num_adapters = self.shape, 16, 2
        q_size, kv_size = (n * shape.head_size for n in (shape.num_q_heads, shape.num_kv_heads))
        ends = q_size, q_size + kv_size, q_size + 2 * kv_size
        add_adapters(
            self._floats(self.rows, ends[-1]),
            self._floats(self.rows, shape.hidden),
            self._floats(num_adapters, len(ends) * rank, shape.hidden),
            self._floats(num_adapters, ends[-1], rank),
            self._ints(self.rows, dtype=torch.int64),
            ends,
        )

    def int4_linear(self) -> None:
        """In groups of 128 inputs, or of 32 where that takes most: sums and scales of each."""
        num_blocks = -(-self.shape.features // BLOCK_IN)
        weight = torch.empty(num_blocks, self.shape.hidden, WORDS, dtype=torch.int32)
        num_groups = self.shape.features // (32 if self.shape.is_gemma else 128)
        groups = torch.empty(num_groups, self.shape.hidden, dtype=torch.int32)
        int4_linear(self._floats(self.rows, self.shape.features), weight, groups)

    def route_experts(self) -> None:
        """Eight of 128 experts."""
        route_experts(self._floats(self.rows, 128), 8, is_renormalised=True)

    def fused_experts(self) -> None:
        """Two of two experts, in FP8 where keys and values are; also with rows in FP8."""
        shape, dtype = self.shape, CODES if self.shape.has_fp8 else self.shape.dtype
        x, ids = self._floats(self.rows, shape.hidden), self._ints(self.rows, 2)
        weights = self._ints(self.rows, 2, dtype=torch.float32)
        gate_up = torch.empty(2, 2 * shape.features, shape.hidden, dtype=dtype)
        down = torch.empty(2, shape.hidden, shape.features, dtype=dtype)
        scales: tuple[Tensor, ...] = ()
        if shape.has_fp8:
            scales = torch.zeros(2, 2 * shape.features), torch.zeros(2, shape.hidden)
        told = (x, gate_up, down, weights, ids, *scales)
        fused_experts(*told, is_gelu=shape.is_gemma)
        if shape.has_fp8:
            fused_experts(*told, is_gelu=shape.is_gemma, is_dynamic=True)

    def quantize_rows(self) -> None:
        """Launch the quantisation of the inputs of the product after the gate."""
        quantize_rows(self._floats(self.rows, self.shape.features))

    def gate_mul(self) -> None:
        """Launch the model's activation."""
        gate = gelu_tanh_mul if self.shape.is_gemma else silu_mul
        gate(self._floats(self.rows, 2 * self.shape.features))

    def gate_mul_fp8(self) -> None:
        """Launch the model's activation, whole rows."""
        gate = gelu_tanh_mul_fp8 if self.shape.is_gemma else silu_mul_fp8
        gate(self._floats(self.rows, 2 * self.shape.features))

    def input_prep(self) -> None:
        """Out of one buffer, whatever lies before."""
        tables = torch.zeros(4, self.max_blocks, dtype=torch.int32)
        longs = [self._ints(self.rows + bound, dtype=torch.int64) for bound in (0, 0, 1, 0)]
        write_rows(tables, longs[0], longs[1], longs[2], longs[3])
        lay_out_step(
            tables,
            torch.zeros(4, dtype=torch.int64),
            longs[0],
            longs[1],
            longs[2],
            longs[3],
            block_size=_BLOCK_SIZE,
            max_count=self.rows,
            token_ids=longs[0],
            positions=longs[1],
            slots=longs[3],
            block_table=self._ints(self.rows, self.max_blocks),
            context_lens=self._ints(self.rows),
        )
        keep_tokens(torch.zeros(4, dtype=torch.int64), longs[0], longs[1])
        rates = [self._ints(self.rows, dtype=torch.float32) for _ in range(3)]
        lay_out_draws(
            tables,
            longs[0],
            longs[1],
            column=self.max_blocks - 6,
            seeds=longs[0],
            positions=longs[1],
            temperatures=rates[0],
            top_k=self._ints(self.rows),
            top_p=rates[1],
            min_p=rates[2],
        )

    def rope_and_store_kv(self) -> None:
        """Into the cache as it lies."""
        shape = self.shape
        k_cache, v_cache, exponents = self._caches()
        norm = self._norm(shape.head_size) if shape.has_qk_norm else None
        num_heads = shape.num_q_heads + 2 * shape.num_kv_heads
        rope_and_store_kv(
            self._floats(self.rows, num_heads * shape.head_size),
            self._ints(self.rows, dtype=torch.int64),
            torch.zeros(64, shape.head_size),
            self._ints(self.rows, dtype=torch.int64),
            k_cache,
            v_cache,
            num_q_heads=shape.num_q_heads,
            num_kv_heads=shape.num_kv_heads,
            q_norm=norm,
            k_norm=norm,
            exponents=exponents,
        )

    def decode_attention(self) -> None:
        """A token a row."""
        k_cache, v_cache, exponents = self._caches()
        table, lens = self._ints(self.rows, self.max_blocks), self._ints(self.rows)
        q = self._queries()
        paged_decode_attention(q, k_cache, v_cache, table, lens, 0.125, *self._bounds, exponents)

    def prefill_attention(self) -> None:
        """A chunk a row."""
        k_cache, v_cache, exponents = self._caches()
        table, lens = self._ints(self.rows, self.max_blocks), self._ints(self.rows)
        starts, bounds = self._ints(self.rows + 1), self._bounds
        q = self._queries()
        paged_prefill_attention(q, k_cache, v_cache, table, starts, lens, 0.125, *bounds, exponents)

    def sample_tokens(self) -> None:
        """A row each, of its own parameters."""
        logits = self._floats(self.rows, self.shape.vocab)
        seeds, positions = (self._ints(self.rows, dtype=torch.int64) for _ in range(2))
        rates = [self._ints(self.rows, dtype=torch.float32) for _ in range(3)]
        top_k = self._ints(self.rows)
        sample_tokens(logits, seeds, positions, rates[0], top_k, rates[1], rates[2])

    def adjust_scores(self) -> None:
        """Penalties and masks, of rows taken out of the step's."""
        scores = torch.zeros(self.rows, self.shape.vocab)
        starts, arriving = self._ints(self.rows + 1), self._ints(self.rows, dtype=torch.int64)
        rates = [self._ints(self.rows, dtype=torch.float32) for _ in range(3)]
        penalise(scores, self._ints(9), self._ints(9), starts, arriving, *rates)
        forbid(scores, arriving, self._ints(self.rows, -(-self.shape.vocab // 32)))
        token_likelihoods(self._floats(self.rows, self.shape.vocab), arriving, self.rows)

    @property
    def _bounds(self) -> tuple[int | None, float | None]:
        return (1024, 50.0) if self.shape.is_gemma else (None, None)

    def _queries(self) -> Tensor:
        return self._floats(self.rows, self.shape.num_q_heads, self.shape.head_size)

    def _floats(self, *sizes: int) -> Tensor:
        return torch.empty(sizes, dtype=self.shape.dtype)  # nobody reads it: zeros take memory

    def _norm(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.float32 if self.shape.is_gemma else self.shape.dtype)

    def _ints(self, *sizes: int, dtype: torch.dtype = torch.int32) -> Tensor:
        # Odd batches leave out their first row, and with it the alignment.
        skipped = self.rows % 2
        return torch.zeros(sizes[0] + skipped, *sizes[1:], dtype=dtype)[skipped:]

    def _caches(self) -> tuple[Tensor, Tensor, Exponents]:
        sizes = (4, _BLOCK_SIZE, self.shape.num_kv_heads, self.shape.head_size)
        k_cache, v_cache = self._floats(2, *sizes).unbind()
        if not self.shape.has_fp8:
            return k_cache, v_cache, None
        exponents = torch.zeros(2, *sizes[:3], dtype=EXPONENTS)
        return k_cache.to(CODES), v_cache.to(CODES), (exponents[0], exponents[1])


def _gate_of(shape: Shape) -> Gate:
    return "gelu_tanh" if shape.is_gemma else "silu"


def launch_class(kernel: str, classes: Mapping[str, int | str]) -> None:
    """Call the launcher of one kernel as a call of this class does: `paceline_kernels.tuned`."""
    columns = int(classes.get("columns", 128))
    is_row = kernel in {"rms_norm", "gate_mul_fp8"}
    shape = Shape(
        name="class",
        hidden=columns if is_row else 4096,
        features=columns if is_row else 4096,
        num_q_heads=32,
        num_kv_heads=8,
        head_size=64 if is_row else columns,
        # A window and a soft cap take registers, too.
        is_gemma=classes.get("bounds") != "none",
        dtype=torch.float32 if classes.get("bits") == 32 else torch.bfloat16,
        has_fp8=classes.get("kv") == "fp8" or classes.get("weight", "own") != "own",
    )
    getattr(Launches(shape, rows=int(classes.get("rows", 3))), kernel)()
