"""Timing cases: one call and its reference for each kernel and size."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import torch
from torch import Tensor

import paceline_kernels
from paceline_engine.attention.prefill.prompts import (
    LayerCache,
    PrefillAttention,
    PromptChunk,
    Prompts,
    ScoreRules,
)
from paceline_kernels.activation import kernel as activation
from paceline_kernels.activation import reference_gelu_tanh_mul, reference_silu_mul
from paceline_kernels.checks import Exponents
from paceline_kernels.decode_attention import kernel as decode_attention
from paceline_kernels.decode_attention import reference_paged_decode_attention
from paceline_kernels.embedding import kernel as embed
from paceline_kernels.embedding import reference_embed_rms_norm
from paceline_kernels.fp8 import dequantize_heads, quantize_heads
from paceline_kernels.int4 import kernel as int4_kernel
from paceline_kernels.int4 import layout as int4_layout
from paceline_kernels.int4 import reference_int4_linear
from paceline_kernels.lora import kernel as lora
from paceline_kernels.lora import reference_add_adapters
from paceline_kernels.moe import kernel as moe
from paceline_kernels.moe import reference_fused_experts, reference_route_experts
from paceline_kernels.norm import kernel as norm
from paceline_kernels.norm import reference_add_rms_norm
from paceline_kernels.prefill_attention import kernel as prefill_attention
from paceline_kernels.prefill_attention import reference_paged_prefill_attention
from paceline_kernels.quantized import kernel as quantized_kernel
from paceline_kernels.quantized import reference_quantized_linear
from paceline_kernels.rotary import kernel as rotary
from paceline_kernels.rotary import reference_rope_and_store_kv
from paceline_kernels.row_products import (
    MAX_ROWS,
    RowNorm,
    reference_add_row_product,
    reference_row_product,
)
from paceline_kernels.row_products import kernel as row_products
from paceline_kernels.sampling import kernel as sampling
from paceline_kernels.sampling import (
    reference_forbid,
    reference_penalise,
    reference_sample_tokens,
    reference_token_likelihoods,
)

BLOCK_SIZE = 16
NUM_EXPERTS, TOP_K = 8, 2
"""Experts of a layer and of a token, as Mixtral 8x7B has them: each is a whole MLP."""

GREEDY = "greedy"
"""Rows that take their likeliest token, by the same three launches."""
# What cuts a row that is drawn from: top-k, top-p, and how far its likely tokens stand out. Where
# they do not, thousands share the probability, and the kernel reads nearly all of them again.
CUTS: dict[str, tuple[int, float, float]] = {
    GREEDY: (0, 1.0, 12.0),
    "whole": (0, 1.0, 12.0),
    "top-k 50": (50, 1.0, 12.0),
    "top-p 0.9": (0, 0.9, 12.0),
    "both": (50, 0.9, 12.0),
    "top-p 0.9 of thousands": (0, 0.9, 0.0),
}

Call = Callable[[], Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Model:
    """The sizes of a model's layer."""

    name: str
    hidden: int
    features: int
    num_q_heads: int
    num_kv_heads: int
    head_size: int
    vocab: int = 128_256


@dataclass(frozen=True, slots=True)
class Layer:
    """A model's layer in a dtype on a device: makes the tensors that its kernels take."""

    model: Model
    dtype: torch.dtype
    device: str

    def randn(self, *sizes: int) -> Tensor:
        """Draw numbers as a layer's activations are: around 1."""
        return torch.randn(sizes, dtype=self.dtype, device=self.device)

    def queries(self, num_tokens: int) -> Tensor:
        """All query heads of some tokens."""
        return self.randn(num_tokens, self.model.num_q_heads, self.model.head_size)

    def caches(self, num_blocks: int) -> tuple[Tensor, Tensor]:
        """K and V, full of numbers in the layer's type."""
        sizes = (num_blocks, BLOCK_SIZE, self.model.num_kv_heads, self.model.head_size)
        return self.randn(*sizes), self.randn(*sizes)

    def tables(self, contexts: Sequence[int]) -> tuple[Tensor, Tensor, int]:
        """Block tables over shuffled blocks, the contexts' lengths, and the number of blocks."""
        counts = [-(-context // BLOCK_SIZE) for context in contexts]
        table = torch.zeros(len(contexts), max(counts), dtype=torch.int32)
        for row, blocks in enumerate(torch.split(torch.randperm(sum(counts)), counts)):
            table[row, : len(blocks)] = blocks
        lens = torch.tensor(contexts, dtype=torch.int32)
        return table.to(self.device), lens.to(self.device), sum(counts)


@dataclass(frozen=True, slots=True)
class Load:
    """The size of a step: tokens of the pointwise ops, rows that sample, decodes, prefills."""

    num_tokens: int
    num_rows: int
    contexts: tuple[tuple[int, ...], ...]
    chunks: tuple[tuple[tuple[int, int], ...], ...]
    """Each (new tokens, context with them)."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one size, with what it must move and compute."""

    model: str
    kernel: str
    size: str
    run: Call
    reference: Call
    num_bytes: int
    num_flops: int = 0
    coarseness: float = 0.0
    """Relative error that is none in any type: sums in another order give other codes."""


def cases_of(layer: Layer, load: Load) -> Iterator[Case]:
    """Yield every kernel of one layer in turn, so that only one's tensors exist at a time."""
    yield norm_case(layer, load.num_tokens)
    yield embedding_case(layer, load.num_tokens)
    yield activation_case(layer, load.num_tokens)
    yield gelu_case(layer, load.num_tokens)
    yield int8_case(layer, load.num_tokens)
    num_rows = min(load.num_tokens, MAX_ROWS)
    yield gated_rows_case(layer, num_rows)
    yield added_rows_case(layer, num_rows)
    yield int4_case(layer, load.num_tokens)
    yield adapters_case(layer, load.num_tokens)
    yield routing_case(layer, load.num_tokens)
    yield experts_case(layer, load.num_tokens)
    yield rotary_case(layer, load.num_tokens)
    for cut in CUTS:
        yield sampling_case(layer, load.num_rows, cut)
    yield penalty_case(layer, load.num_rows)
    yield mask_case(layer, load.num_rows)
    yield likelihood_case(layer, load.num_rows)
    for contexts in load.contexts:
        yield decode_case(layer, contexts)
    for chunks in load.chunks:
        yield prefill_case(layer, chunks)


def norm_case(layer: Layer, num_tokens: int) -> Case:
    """Two rows read, two written."""
    x, residual = layer.randn(2, num_tokens, layer.model.hidden)
    weight = layer.randn(layer.model.hidden)
    return Case(
        layer.model.name,
        "add_rms_norm",
        f"{num_tokens} tokens",
        lambda: norm.add_rms_norm(x, residual, weight, 1e-5),
        lambda: reference_add_rms_norm(x.double(), residual.double(), weight.double(), 1e-5),
        num_bytes=4 * x.nbytes + weight.nbytes,
    )


def embedding_case(layer: Layer, num_tokens: int) -> Case:
    """A row read, two written; as many rows as tokens, so that no cache holds them."""
    embedding, weight = layer.randn(num_tokens, layer.model.hidden), layer.randn(layer.model.hidden)
    ids = torch.randperm(num_tokens, device=layer.device)
    return Case(
        layer.model.name,
        "embed_rms_norm",
        f"{num_tokens} tokens",
        lambda: embed.embed_rms_norm(ids, embedding, weight, 1e-5),
        lambda: reference_embed_rms_norm(ids, embedding.double(), weight.double(), 1e-5),
        num_bytes=3 * embedding.nbytes + weight.nbytes,
    )


def activation_case(layer: Layer, num_tokens: int) -> Case:
    """Two halves read, one written."""
    x = layer.randn(num_tokens, 2 * layer.model.features)
    return Case(
        layer.model.name,
        "silu_mul",
        f"{num_tokens} tokens",
        lambda: activation.silu_mul(x),
        lambda: reference_silu_mul(x.double()),
        num_bytes=x.nbytes * 3 // 2,
    )


def gelu_case(layer: Layer, num_tokens: int) -> Case:
    """The other gate, with another activation."""
    x = layer.randn(num_tokens, 2 * layer.model.features)
    return Case(
        layer.model.name,
        "gelu_tanh_mul",
        f"{num_tokens} tokens",
        lambda: activation.gelu_tanh_mul(x),
        lambda: reference_gelu_tanh_mul(x.double()),
        num_bytes=x.nbytes * 3 // 2,
    )


def int8_case(layer: Layer, num_tokens: int) -> Case:
    """The product after the gate: the weight is read once."""
    model = layer.model
    x = layer.randn(num_tokens, model.features)
    weight = torch.randint(
        -127, 128, (model.hidden, model.features), dtype=torch.int8, device=layer.device
    )
    scales = torch.rand(model.hidden, device=layer.device) / 127
    return Case(
        model.name,
        "quantized_linear",
        f"{num_tokens} tokens",
        lambda: quantized_kernel.quantized_linear(x, weight, scales),
        lambda: reference_quantized_linear(x.double(), weight, scales.double()),
        num_bytes=x.nbytes + weight.nbytes + num_tokens * model.hidden * x.element_size(),
        num_flops=2 * num_tokens * model.hidden * model.features,
    )


def gated_rows_case(layer: Layer, num_rows: int, *, is_separate: bool = False) -> Case:
    """Norm, both halves of an MLP and their gate, in one launch; or in three, one of cuBLAS."""
    model = layer.model
    x, weight = layer.randn(num_rows, model.hidden), layer.randn(2 * model.features, model.hidden)
    weight *= model.hidden**-0.5
    squares = x.double().square().sum(dim=1)[None]
    norm = RowNorm(layer.randn(model.hidden), squares.float(), 1e-5)
    wide = RowNorm(norm.weight.double(), squares, norm.eps)
    zeros = torch.zeros_like(x)

    def separate() -> Tensor:
        normed, _ = paceline_kernels.add_rms_norm(x, zeros, norm.weight, norm.eps)
        return activation.silu_mul(torch.nn.functional.linear(normed, weight))

    return Case(
        model.name,
        "row_product",
        f"{num_rows} rows",
        separate
        if is_separate
        else lambda: row_products.row_product(x, weight, None, norm, "silu"),
        lambda: reference_row_product(x.double(), weight.double(), None, wide, "silu"),
        num_bytes=x.nbytes + weight.nbytes + num_rows * model.features * x.element_size(),
        num_flops=4 * num_rows * model.hidden * model.features,
    )


def added_rows_case(layer: Layer, num_rows: int, *, is_separate: bool = False) -> Case:
    """The product behind the gate and the residual; or cuBLAS and a sum of its own."""
    model = layer.model
    x, residual = layer.randn(num_rows, model.features), layer.randn(num_rows, model.hidden)
    weight = layer.randn(model.hidden, model.features) * model.features**-0.5

    def separate() -> Tensor:
        return torch.nn.functional.linear(x, weight) + residual

    return Case(
        model.name,
        "add_row_product",
        f"{num_rows} rows",
        separate if is_separate else lambda: row_products.add_row_product(x, weight, residual)[0],
        lambda: reference_add_row_product(x.double(), weight.double(), residual.double())[0],
        num_bytes=x.nbytes + weight.nbytes + 2 * residual.nbytes,
        num_flops=2 * num_rows * model.hidden * model.features,
    )


def int4_case(layer: Layer, num_tokens: int) -> Case:
    """The product after the gate with 4 bits a weight, in groups of 64."""
    model, device = layer.model, layer.device
    x = layer.randn(num_tokens, model.features)
    num_blocks = -(-model.features // int4_layout.BLOCK_IN)
    words = (num_blocks, model.hidden, int4_layout.WORDS)
    bounds = (-(1 << 31), 1 << 31)
    weight = torch.randint(*bounds, words, dtype=torch.int32, device=device)
    scales = (1 + torch.rand(model.features // 64, model.hidden, device=device)) / 8
    groups = int4_layout.with_zeros(scales, torch.randint_like(scales, 16))
    return Case(
        model.name,
        "int4_linear",
        f"{num_tokens} tokens",
        lambda: int4_kernel.int4_linear(x, weight, groups),
        lambda: reference_int4_linear(x.double(), weight, groups),
        num_bytes=(
            x.nbytes + weight.nbytes + groups.nbytes + num_tokens * model.hidden * x.element_size()
        ),
        num_flops=2 * num_tokens * model.hidden * model.features,
    )


def adapters_case(layer: Layer, num_tokens: int, *, rank: int = 16) -> Case:
    """Four adapters add to gate and up; neighbouring tokens have different ones."""
    model, device = layer.model, layer.device
    num_adapters, ends = 4, (model.features, 2 * model.features)
    x, y = layer.randn(num_tokens, model.hidden), layer.randn(num_tokens, ends[-1])
    down = layer.randn(num_adapters, 2 * rank, model.hidden) / model.hidden**0.5
    up = layer.randn(num_adapters, ends[-1], rank) / rank**0.5
    owners = torch.arange(num_tokens, device=device) % num_adapters
    wide = (x.double(), down.double(), up.double(), owners, ends)
    read = min(num_tokens, num_adapters) * (down[0].nbytes + up[0].nbytes)
    return Case(
        model.name,
        "add_adapters",
        f"{num_tokens} tokens",
        lambda: lora.add_adapters(y.clone(), x, down, up, owners, ends),
        lambda: reference_add_adapters(y.double(), *wide),
        # The product is copied first, for it is changed.
        num_bytes=x.nbytes + read + 4 * y.nbytes,
        num_flops=2 * num_tokens * rank * (2 * model.hidden + ends[-1]),
    )


def routing_case(layer: Layer, num_tokens: int) -> Case:
    """The logits of 128 experts are read once, for eight of each token."""
    logits = layer.randn(num_tokens, 128)
    return Case(
        layer.model.name,
        "route_experts",
        f"{num_tokens} tokens",
        lambda: moe.route_experts(logits, 8, is_renormalised=True),
        lambda: reference_route_experts(logits.double(), 8, is_renormalised=True),
        num_bytes=logits.nbytes + num_tokens * 8 * 8,
    )


def experts_case(layer: Layer, num_tokens: int) -> Case:
    """Few tokens: bound by the weights of all experts that any of them has."""
    model, device = layer.model, layer.device
    x = layer.randn(num_tokens, model.hidden)
    gate_up = layer.randn(NUM_EXPERTS, 2 * model.features, model.hidden)
    gate_up *= model.hidden**-0.5
    down = layer.randn(NUM_EXPERTS, model.hidden, model.features)
    down *= model.features**-0.5
    weights, ids = routing_of(num_tokens, device)
    return Case(
        model.name,
        "fused_experts",
        f"{num_tokens} tokens",
        lambda: moe.fused_experts(x, gate_up, down, weights, ids),
        lambda: reference_fused_experts(x.double(), gate_up, down, weights, ids),
        **experts_work(layer, num_tokens, gate_up.nbytes + down.nbytes),
    )


def routing_of(num_tokens: int, device: str) -> tuple[Tensor, Tensor]:
    """Two experts of each token, which all experts serve alike."""
    first = torch.randint(NUM_EXPERTS, (num_tokens, 1), dtype=torch.int32, device=device)
    ids = torch.cat([first, (first + 3) % NUM_EXPERTS], dim=1)
    return torch.rand(num_tokens, TOP_K, device=device), ids


def experts_work(layer: Layer, num_tokens: int, weight_bytes: int) -> dict[str, int]:
    """Count bytes and FLOPs: weights of the experts that there are slots for, and all rows."""
    model, slots = layer.model, num_tokens * TOP_K
    of_experts = weight_bytes * min(slots, NUM_EXPERTS) // NUM_EXPERTS
    values = 2 * num_tokens * model.hidden + 2 * slots * (model.features + model.hidden)
    return {
        "num_bytes": of_experts + values * layer.dtype.itemsize,
        "num_flops": 2 * slots * 3 * model.features * model.hidden,
    }


def rotary_case(layer: Layer, num_tokens: int) -> Case:
    """One row read, and written as queries and KV."""
    model = layer.model
    num_heads = model.num_q_heads + 2 * model.num_kv_heads
    qkv = layer.randn(num_tokens, num_heads * model.head_size)
    angles = torch.randn(num_tokens, model.head_size, device=layer.device)
    slots = torch.randperm(num_tokens, device=layer.device)
    caches = layer.caches(-(-num_tokens // BLOCK_SIZE))

    def rotate(op: Callable[..., Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
        k_cache, v_cache = (cache.to(dtype) for cache in caches)
        heads = {"num_q_heads": model.num_q_heads, "num_kv_heads": model.num_kv_heads}
        q = op(qkv.to(dtype), slots, angles, slots, k_cache, v_cache, **heads)
        return q, k_cache, v_cache

    return Case(
        model.name,
        "rope_and_store_kv",
        f"{num_tokens} tokens",
        lambda: rotate(rotary.rope_and_store_kv, layer.dtype),
        lambda: rotate(reference_rope_and_store_kv, torch.float64),
        num_bytes=2 * qkv.nbytes + angles.nbytes,
    )


def sampling_case(layer: Layer, num_rows: int, cut: str) -> Case:
    """The logits are read once."""
    top_k, top_p, height = CUTS[cut]
    vocab, device = layer.model.vocab, layer.device
    ranks = torch.arange(1, vocab + 1, device=device, dtype=torch.float32)
    logits = 2 * torch.randn(num_rows, vocab, device=device)
    # Somewhere in the vocabulary: no two likely tokens are neighbours.
    logits += (height - 1.5 * ranks.log()).clamp(min=0)[torch.randperm(vocab, device=device)]
    logits = logits.to(layer.dtype)

    def rates(value: float) -> Tensor:
        return torch.full((num_rows,), value, device=device)

    seeds = torch.randint(1 << 62, (num_rows,), device=device)
    rows = torch.arange(num_rows, device=device)
    temperature = rates(0.0 if cut == GREEDY else 0.8)
    limits = (temperature, rates(top_k).to(torch.int32), rates(top_p), rates(0.0))
    return Case(
        layer.model.name,
        "sample_tokens",
        f"{num_rows} rows, {cut}",
        lambda: sampling.sample_tokens(logits, seeds, rows, *limits),
        lambda: reference_sample_tokens(logits.double(), seeds, rows, *limits),
        num_bytes=logits.nbytes,
    )


def penalty_case(layer: Layer, num_rows: int) -> Case:
    """Some hundred scattered tokens of each row: a sector of memory each, read and written."""
    vocab, device = layer.model.vocab, layer.device
    scores = torch.randn(num_rows, vocab, device=device)
    num_ids = min(300, vocab // 2)
    ids = torch.stack([torch.randperm(vocab, device=device)[:num_ids] for _ in range(num_rows)])
    starts = torch.arange(num_rows + 1, device=device) * num_ids
    counts = torch.randint(5, (num_rows * num_ids,), dtype=torch.int32, device=device)
    rates = [torch.full((num_rows,), rate, device=device) for rate in (1.1, 0.2, 0.3)]
    arriving = ids[:, 0].contiguous()
    told = (ids.flatten().int(), counts, starts.int(), arriving, *rates)
    return Case(
        layer.model.name,
        "penalise",
        f"{num_rows} rows of {num_ids}",
        lambda: sampling.penalise(scores.clone(), *told),
        lambda: reference_penalise(scores.double(), *told),
        num_bytes=2 * scores.nbytes + ids.numel() * (2 * 32 + 8),  # with the copy that is made
    )


def mask_case(layer: Layer, num_rows: int) -> Case:
    """One bit for each token."""
    vocab, device = layer.model.vocab, layer.device
    scores = torch.randn(num_rows, vocab, device=device)
    rows = torch.arange(num_rows, device=device)
    bounds = (-(1 << 31), 1 << 31)
    words = torch.randint(*bounds, (num_rows, -(-vocab // 32)), dtype=torch.int32, device=device)

    def ruled_out(forbid: Callable[..., Tensor]) -> Tensor:
        return forbid(scores.clone(), rows, words).clamp(min=-1e3)

    return Case(
        layer.model.name,
        "forbid",
        f"{num_rows} rows",
        lambda: ruled_out(sampling.forbid),
        lambda: ruled_out(reference_forbid).double(),
        num_bytes=5 * scores.nbytes + words.nbytes,  # with the copy, and what bounds it
    )


def likelihood_case(layer: Layer, num_rows: int) -> Case:
    """The logits are read once, for the likeliest tokens of each row and one given token."""
    vocab, device = layer.model.vocab, layer.device
    logits = 3 * layer.randn(num_rows, vocab)
    logits[:, 5] += 20  # the likeliest, so that its rank is in few groups
    tokens = torch.full((num_rows,), 5, device=device)

    def without_ids(tell: Callable[..., Tensor], scores: Tensor) -> Tensor:
        return tell(scores, tokens, 5)[:, :7]  # equal logits have an order in the kernel alone

    return Case(
        layer.model.name,
        "token_likelihoods",
        f"{num_rows} rows",
        lambda: without_ids(sampling.token_likelihoods, logits),
        lambda: without_ids(reference_token_likelihoods, logits.double()),
        num_bytes=logits.nbytes,
    )


def decode_case(layer: Layer, contexts: tuple[int, ...], *, is_fp8: bool = False) -> Case:
    """One token of each row: bound by the KV that is read once."""
    table, lens, num_blocks = layer.tables(contexts)
    k_cache, v_cache, exponents = stored(layer.caches(num_blocks), is_fp8=is_fp8)
    q = layer.queries(len(contexts))
    scale = layer.model.head_size**-0.5
    # Made at the first call: a step makes one for all its layers.
    plan_of = cache(lambda: decode_attention.plan_decode_attention(q, k_cache, lens))
    return Case(
        layer.model.name,
        "paged_decode_attention",
        sizes_of(contexts),
        lambda: decode_attention.paged_decode_attention(
            q, k_cache, v_cache, table, lens, scale, exponents=exponents, plan=plan_of()
        ),
        lambda: reference_paged_decode_attention(
            q.double(), *widened(k_cache, v_cache, exponents), table, lens, scale
        ),
        num_bytes=2 * q.nbytes + 2 * sum(contexts) * k_cache[0, 0].nbytes,
    )


def prefill_case(
    layer: Layer, chunks: tuple[tuple[int, int], ...], *, is_fp8: bool = False
) -> Case:
    """Chunks of prompts: bound by the tensor cores."""
    table, lens, num_blocks = layer.tables([context for _, context in chunks])
    k_cache, v_cache, exponents = stored(layer.caches(num_blocks), is_fp8=is_fp8)
    starts = torch.tensor([0, *(tokens for tokens, _ in chunks)], device=layer.device)
    cu_seqlens = starts.cumsum(0).to(torch.int32)
    q = layer.queries(sum(tokens for tokens, _ in chunks))
    scale = layer.model.head_size**-0.5
    num_pairs = sum(tokens * context - math.comb(tokens, 2) for tokens, context in chunks)
    return Case(
        layer.model.name,
        "paged_prefill_attention",
        sizes_of([f"{tokens}/{context}" for tokens, context in chunks]),
        lambda: prefill_attention.paged_prefill_attention(
            q, k_cache, v_cache, table, cu_seqlens, lens, scale, exponents=exponents
        ),
        lambda: reference_paged_prefill_attention(
            q.double(), *widened(k_cache, v_cache, exponents), table, cu_seqlens, lens, scale
        ),
        num_bytes=2 * q.nbytes + 2 * k_cache.nbytes,
        num_flops=4 * num_pairs * q[0].numel(),
    )


def sdpa_prefill_case(layer: Layer, attend: PrefillAttention, chunk: PromptChunk) -> Case:
    """Torch's attention for one chunk of a prompt, as the engine would call it."""
    scale = layer.model.head_size**-0.5
    num_tokens, context = chunk
    table, lens, num_blocks = layer.tables([context])
    cache = LayerCache(*layer.caches(num_blocks), None)
    q = layer.queries(num_tokens)
    token = torch.arange(context - num_tokens, context, device=layer.device)
    slots = table[0, token // BLOCK_SIZE].long() * BLOCK_SIZE + token % BLOCK_SIZE
    starts = torch.tensor([0, num_tokens], dtype=torch.int32, device=layer.device)
    prompts = Prompts((chunk,), table, starts, lens, slots, BLOCK_SIZE)
    num_pairs = math.comb(context + 1, 2) - math.comb(context - num_tokens + 1, 2)
    return Case(
        layer.model.name,
        "sdpa",
        sizes_of([f"{num_tokens}/{context}"]),
        lambda: attend(q, cache, prompts, ScoreRules(scale)),
        lambda: reference_paged_prefill_attention(
            q.double(), cache.keys.double(), cache.values.double(), table, starts, lens, scale
        ),
        num_bytes=2 * q.nbytes + 2 * cache.keys.nbytes,
        num_flops=4 * num_pairs * q[0].numel(),
    )


def stored(caches: tuple[Tensor, Tensor], *, is_fp8: bool) -> tuple[Tensor, Tensor, Exponents]:
    """K and V as the engine keeps them."""
    if not is_fp8:
        return *caches, None
    (k, k_exponents), (v, v_exponents) = map(quantize_heads, caches)
    return k, v, (k_exponents, v_exponents)


def widened(k_cache: Tensor, v_cache: Tensor, exponents: Exponents) -> tuple[Tensor, Tensor]:
    """Convert to float64."""
    if exponents is None:
        return k_cache.double(), v_cache.double()
    k, v = (
        dequantize_heads(codes, scales, torch.float64)
        for codes, scales in zip((k_cache, v_cache), exponents, strict=True)
    )
    return k, v


def sizes_of(rows: Sequence[object]) -> str:
    """Name a batch by its runs of equal rows: 1 x 32768, 63 x 1024."""
    return ", ".join(f"{len(list(run))} x {size}" for size, run in groupby(rows))
