"""Every launcher at ragged sizes, with every access of its kernels checked."""

import os
from collections.abc import Callable, Iterator
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline_kernels.activation import kernel as activation
from paceline_kernels.decode_attention import kernel as decode_attention
from paceline_kernels.embedding import kernel as embedding
from paceline_kernels.fp8 import CODES, EXPONENTS
from paceline_kernels.fp8_rows import kernel as fp8_rows
from paceline_kernels.input_prep import DRAW_COLUMNS
from paceline_kernels.input_prep import kernel as input_prep
from paceline_kernels.int4 import GROUP_SIZES, pack
from paceline_kernels.int4 import kernel as int4
from paceline_kernels.lora import kernel as lora
from paceline_kernels.moe import kernel as moe
from paceline_kernels.norm import kernel as norm
from paceline_kernels.prefill_attention import kernel as prefill_attention
from paceline_kernels.quantized import kernel as quantized
from paceline_kernels.rotary import kernel as rotary
from paceline_kernels.row_products import ARRIVALS, Gate, RowNorm
from paceline_kernels.row_products import kernel as row_products
from paceline_kernels.sampling import kernel as sampling
from paceline_kernels.tuned import NO_GPU, SHIPPED, Gpu, blocks_of
from paceline_testing.interpreter import patch_once
from paceline_testing.kernel_cases import Heads, PagedKV, a_paged_kv, random_floats
from paceline_testing.sanitizer import sanitized, sparse

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="looks into Triton's interpreter"
    ),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy tells of infinities
]
FLOAT16 = torch.float16
few = settings(max_examples=12, deadline=None)
columns = st.integers(1, 300)
row_counts = st.integers(1, 5)
dtypes = st.sampled_from([torch.float16, torch.float32])


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Many small launches."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        patch_once(monkeypatch)
        yield


@pytest.fixture(autouse=True)
def poisoned_memory() -> None:
    """Leave fresh memory as it is: the sanitizer knows which was never written."""


def floats(*sizes: int, dtype: torch.dtype = FLOAT16) -> Tensor:
    return random_floats(*sizes, dtype=dtype, device="cpu")


@few
@given(row_counts, columns, dtypes, st.booleans())
def test_norms(rows: int, hidden: int, dtype: torch.dtype, wide_weight: bool) -> None:
    x, residual = floats(rows, hidden, dtype=dtype), floats(rows, hidden, dtype=dtype)
    weight = floats(hidden, dtype=torch.float32 if wide_weight else dtype)
    vocabulary = floats(7, hidden, dtype=dtype)
    tokens = torch.arange(rows).flip(0)

    with sanitized() as sanitizer:
        results = [
            norm.rms_norm(x, weight, 1e-5),
            *norm.add_rms_norm(x, residual, weight, 1e-5),
            *norm.add_rms_norm_fp8(x, residual, weight, 1e-5),
            *embedding.embed_rms_norm(tokens, vocabulary, weight, 1e-5, 2.0),
        ]
        sanitizer.require_written(*results)


@few
@given(row_counts, st.integers(1, 2500), dtypes)
def test_gates_and_rows_in_fp8(rows: int, features: int, dtype: torch.dtype) -> None:
    x = floats(rows, 2 * features, dtype=dtype)

    with sanitized() as sanitizer:
        results = [
            activation.silu_mul(x),
            activation.gelu_tanh_mul(x),
            *activation.silu_mul_fp8(x),
            *activation.gelu_tanh_mul_fp8(x),
            *fp8_rows.quantize_rows(x),
        ]
        sanitizer.require_written(*results)


@few
@given(st.integers(1, 70), st.integers(1, 200), st.integers(1, 200), st.booleans(), st.booleans())
def test_quantized_products(
    rows: int, num_in: int, num_out: int, has_bias: bool, is_fp8: bool
) -> None:
    weight = torch.randint(-9, 9, (num_out, num_in)).to(torch.int8)
    bias = floats(num_out) if has_bias else None
    scales = floats(num_out, dtype=torch.float32)

    with sanitized() as sanitizer:
        given = floats(rows, num_in), weight.to(CODES) if is_fp8 else weight, scales, bias
        sanitizer.require_written(quantized.quantized_linear(*given))


@few
@given(
    st.sampled_from([1, 3, 16, 17, 70, 128]),
    st.integers(1, 700),
    st.integers(1, 200),
    st.sampled_from([None, "silu", "gelu_tanh"]),
    st.sampled_from([1, 4, 30]),
)
def test_products_of_few_rows(
    rows: int, num_in: int, num_out: int, gate: Gate | None, multiprocessors: int
) -> None:
    """Whole, and in parts that the last to arrive joins."""
    x, weight = floats(rows, num_in), floats(num_out * (2 if gate else 1), num_in)
    bias, residual = floats(len(weight)), floats(rows, num_out)
    arrived = torch.zeros(ARRIVALS, dtype=torch.int32)
    norm = RowNorm(floats(num_in), torch.rand(3, rows), 1e-5) if num_in % 3 else None

    with (
        blocks_of.as_if(SHIPPED, Gpu("", NO_GPU.capability, multiprocessors)),
        sanitized() as sanitizer,
    ):
        result = row_products.row_product(x, weight, bias, norm, gate, arrived=arrived)
        results = row_products.add_row_product(
            x, weight[:num_out].contiguous(), residual, arrived=arrived
        )
        sanitizer.require_written(result, *results)


@few
@given(
    st.lists(st.integers(-1, 2), min_size=1, max_size=40),
    st.integers(1, 100),
    st.lists(st.integers(1, 150), min_size=1, max_size=3),
    st.integers(1, 70),
)
def test_adapters(owners: list[int], num_in: int, parts: list[int], rank: int) -> None:
    tokens, ends = len(owners), tuple(accumulate(parts))

    with sanitized() as sanitizer:
        lora.add_adapters(
            floats(tokens, ends[-1]),
            floats(tokens, num_in),
            floats(3, len(parts) * rank, num_in),
            floats(3, ends[-1], rank),
            torch.tensor(owners),
            ends,
        )

    assert sanitizer.num_launches == 2


@few
@given(
    st.integers(1, 20),
    st.integers(1, 9),
    st.integers(1, 4),
    st.tuples(st.integers(1, 80), st.integers(1, 70)),
    st.sampled_from(["own", "fp8", "dynamic"]),
)
def test_experts(
    num_tokens: int, num_experts: int, top_k: int, sizes: tuple[int, int], kind: str
) -> None:
    (hidden, features), top_k, is_fp8 = sizes, min(top_k, num_experts), kind != "own"
    gate_up = floats(num_experts, 2 * features, hidden)
    down = floats(num_experts, hidden, features)
    scales = torch.ones(num_experts, 1)

    with sanitized() as sanitizer:
        weights, ids = moe.route_experts(
            floats(num_tokens, num_experts), top_k, is_renormalised=num_tokens % 2 == 0
        )
        sanitizer.require_written(weights, ids)
        result = moe.fused_experts(
            floats(num_tokens, hidden),
            gate_up.to(CODES) if is_fp8 else gate_up,
            down.to(CODES) if is_fp8 else down,
            weights,
            ids,
            scales.expand(-1, 2 * features).contiguous() if is_fp8 else None,
            scales if is_fp8 else None,
            is_dynamic=kind == "dynamic",
        )
        sanitizer.require_written(result)


@few
@given(
    st.integers(1, 70),
    st.integers(1, 9),
    st.sampled_from(GROUP_SIZES),
    st.integers(1, 100),
    st.booleans(),
)
def test_products_of_4_bits(
    rows: int, num_groups: int, group: int, num_out: int, has_bias: bool
) -> None:
    num_in = num_groups * group
    shape = num_out, num_in
    codes = torch.randint(0, 16, shape, dtype=torch.uint8)
    zeros = torch.randint(0, 16, (num_groups, num_out), dtype=torch.uint8)
    weight = pack(codes, floats(num_groups, num_out, dtype=torch.float32), zeros)

    with sanitized() as sanitizer:
        result = int4.int4_linear(
            floats(rows, num_in),
            weight.weight,
            weight.groups,
            floats(num_out) if has_bias else None,
        )
        sanitizer.require_written(result)


any_heads = st.builds(
    lambda group, num_kv, half, block_size: Heads(group * num_kv, num_kv, 2 * half, block_size),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 40),
    st.sampled_from([1, 4, 16]),
)


@few
@given(any_heads, st.permutations(range(12)), st.integers(0, 6), st.booleans(), st.booleans())
def test_rotary_embedding_and_kv_writes(
    heads: Heads, order: list[int], num_tokens: int, is_fp8: bool, has_norm: bool
) -> None:
    num_blocks = -(-12 // heads.block_size)
    kv = floats(num_blocks, 2, heads.block_size, heads.num_kv, heads.size)
    kv = kv.to(CODES) if is_fp8 else kv
    exponents = torch.zeros(2, *kv[:, 0].shape[:3], dtype=EXPONENTS) if is_fp8 else None
    slots = torch.tensor(order[:num_tokens], dtype=torch.int64)
    slots[slots == 5] = -1
    inputs = torch.cat([torch.arange(num_tokens), slots])  # as one copy brings them
    weight = floats(heads.size) if has_norm else None

    with sanitized() as sanitizer:
        q = rotary.rope_and_store_kv(
            floats(num_tokens, (heads.num_q + 2 * heads.num_kv) * heads.size),
            inputs[:num_tokens],
            floats(6, heads.size, dtype=torch.float32),
            inputs[num_tokens:],
            kv[:, 0],
            kv[:, 1],
            num_q_heads=heads.num_q,
            num_kv_heads=heads.num_kv,
            q_norm=weight,
            k_norm=weight,
            exponents=None if exponents is None else (exponents[0], exponents[1]),
        )
        sanitizer.require_written(q)


sequences = st.tuples(st.integers(0, 60), st.integers(0, 300), st.booleans())
"""Where a sequence starts, how many tokens it has, and whether it is padding."""


@few
@given(st.lists(sequences, min_size=1, max_size=4), st.integers(0, 300), st.permutations(range(4)))
def test_a_step_is_laid_out(
    asked: list[tuple[int, int, bool]], spare: int, rows: list[int]
) -> None:
    block_size = 4
    count_of = [1 if is_padding else count for _, count, is_padding in asked]
    ends = [
        0 if is_padding else start + count
        for (start, _, is_padding), count in zip(asked, count_of, strict=True)
    ]
    width = max(1, -(-max(ends) // block_size)) + spare
    tables = torch.randint(0, 99, (4, width + DRAW_COLUMNS), dtype=torch.int32)
    num_tokens, num = sum(count_of), len(asked)
    given_ids = torch.arange(num_tokens) - 1
    parts = [
        torch.tensor([-1 if pad else row for row, (_, _, pad) in zip(rows, asked, strict=False)]),
        torch.tensor([start for start, _, _ in asked]),
        torch.tensor([0, *count_of]).cumsum(0),
        given_ids,
    ]
    packed = torch.cat(parts).split([len(part) for part in parts])

    with sanitized() as sanitizer:
        longs = torch.empty(3, num_tokens, dtype=torch.int64).unbind()
        ints = torch.empty(num * (width + 1), dtype=torch.int32)
        table, lens = ints[: num * width].view(num, width), ints[num * width :]
        input_prep.lay_out_step(
            tables,
            torch.arange(4),
            *packed,
            block_size=block_size,
            max_count=max(count_of),
            token_ids=longs[0],
            positions=longs[1],
            slots=longs[2],
            block_table=table,
            context_lens=lens,
        )
        sanitizer.require_written(*longs, table, lens)


@few
@given(st.permutations(range(9)), st.integers(0, 9), st.integers(0, 4))
def test_rows_are_written_read_and_kept(order: list[int], count: int, num_padding: int) -> None:
    num_columns = 270 + DRAW_COLUMNS
    tables = torch.zeros(9, num_columns, dtype=torch.int32)
    rows = torch.tensor([*order[:count], *[-1] * num_padding], dtype=torch.int64)
    runs = torch.tensor([[order[0], 0, 260], [order[1], 3, 7], [order[0], 263, 5]])
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), runs[:, 2].cumsum(0)])
    num = len(rows)

    with sanitized() as sanitizer:
        input_prep.write_rows(
            tables,
            runs[:, 0].contiguous(),
            runs[:, 1].contiguous(),
            bounds,
            torch.arange(int(bounds[-1])),
        )
        seeds, positions = torch.empty(2, num, dtype=torch.int64).unbind()
        kinds = (torch.float32, torch.int32, torch.float32, torch.float32)
        drawn = [torch.empty(num, dtype=dtype) for dtype in kinds]
        input_prep.lay_out_draws(
            tables,
            rows,
            torch.arange(num),
            column=num_columns - DRAW_COLUMNS,
            seeds=seeds,
            positions=positions,
            temperatures=drawn[0],
            top_k=drawn[1],
            top_p=drawn[2],
            min_p=drawn[3],
        )
        sanitizer.require_written(seeds, positions, *drawn)
        input_prep.keep_tokens(torch.arange(9), rows, torch.arange(num))


windows = st.none() | st.integers(1, 70)


def _kv(lengths: list[int], heads: Heads, is_fp8: bool) -> PagedKV:
    kv = a_paged_kv(lengths, heads, dtype=FLOAT16, device="cpu")

    return kv.fp8() if is_fp8 else kv


@few
@given(
    st.lists(st.integers(0, 90) | st.integers(250, 900), min_size=1, max_size=4),
    any_heads,
    windows,
    st.booleans(),
)
def test_attention_of_decodes(
    lengths: list[int], heads: Heads, window: int | None, is_fp8: bool
) -> None:
    kv = _kv(lengths, heads, is_fp8)

    with sanitized() as sanitizer:
        result = decode_attention.paged_decode_attention(
            floats(len(lengths), heads.num_q, heads.size),
            *kv.caches,
            kv.block_table,
            kv.context_lens,
            0.125,
            window,
            None,
            kv.exponents,
        )
        sanitizer.require_written(result)


@few
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 50)), min_size=1, max_size=3),
    any_heads,
    windows,
    st.booleans(),
    st.tuples(st.sampled_from([0, 1, 70, 200]), st.integers(0, 5)),
)
def test_attention_of_prompts(
    chunks: list[tuple[int, int]],
    heads: Heads,
    window: int | None,
    is_fp8: bool,
    around: tuple[int, int],
) -> None:
    """With tokens before the chunks and behind them that are nobody's."""
    decodes, spare = around
    kv = _kv([count + before for count, before in chunks], heads, is_fp8)
    bounds = torch.tensor([decodes, *(count for count, _ in chunks)]).cumsum(0).int()

    with sanitized() as sanitizer:
        result = prefill_attention.paged_prefill_attention(
            floats(int(bounds[-1]) + spare, heads.num_q, heads.size),
            *kv.caches,
            kv.block_table,
            bounds,
            kv.context_lens,
            0.125,
            window,
            30.0,
            kv.exponents,
        )
        sanitizer.require_written(result[decodes : int(bounds[-1])])


vocabularies = st.integers(1, 700) | st.sampled_from([128, 4096, 4097, 9000])
draws = st.tuples(
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([0, 1, 3, 50, 100_000]),
    st.sampled_from([1.0, 0.9, 1e-6]),
    st.sampled_from([0.0, 0.1, 1.0]),
)


@few
@given(st.lists(draws, min_size=1, max_size=3), vocabularies, dtypes, st.booleans())
def test_sampling(
    asked: list[tuple[float, int, float, float]],
    vocab: int,
    dtype: torch.dtype,
    is_broken: bool,
) -> None:
    logits = floats(len(asked), vocab, dtype=dtype)
    if is_broken:
        logits[0, vocab // 2] = torch.nan
    columns_of = [torch.tensor(each) for each in zip(*asked, strict=True)]
    temperatures, top_k, top_p, min_p = (
        each.to(torch.int32 if place == 1 else torch.float32)
        for place, each in enumerate(columns_of)
    )
    seeds, positions = torch.arange(2 * len(asked)).view(2, -1).unbind()

    with sanitized() as sanitizer:
        tokens = sampling.sample_tokens(logits, seeds, positions, temperatures, top_k, top_p, min_p)
        sanitizer.require_written(tokens)


@few
@given(
    st.lists(st.sets(st.integers(0, 699), max_size=600), min_size=1, max_size=3),
    st.integers(-1, 699),
)
def test_penalties(lists: list[set[int]], arriving: int) -> None:
    rows = len(lists)
    ids = torch.tensor([token for each in lists for token in each], dtype=torch.int32)
    starts = torch.tensor([0, *map(len, lists)]).cumsum(0).int()
    rates = [torch.full((rows,), 1.5) for _ in range(3)]

    with sanitized():
        sampling.penalise(
            floats(rows, 700, dtype=torch.float32),
            ids,
            ids % 3,
            starts,
            torch.full((rows,), arriving),
            *rates,
        )


@few
@given(st.integers(1, 2100), st.permutations(range(4)), st.integers(0, 4), st.integers(0, 3))
def test_masks(vocab: int, order: list[int], count: int, spare: int) -> None:
    words = torch.randint(-(1 << 31), (1 << 31) - 1, (count, -(-vocab // 32) + spare))

    with sanitized():
        sampling.forbid(
            floats(4, vocab, dtype=torch.float32),
            torch.tensor(order[:count], dtype=torch.int64),
            words.int(),
        )


@few
@given(row_counts, vocabularies, st.integers(0, 9), dtypes)
def test_likelihoods(rows: int, vocab: int, num_top: int, dtype: torch.dtype) -> None:
    tokens = torch.randint(-1, vocab, (rows,))

    with sanitized() as sanitizer:
        numbers = sampling.token_likelihoods(
            floats(rows, vocab, dtype=dtype), tokens, min(num_top, vocab)
        )
        sanitizer.require_written(numbers)


def _long_norms() -> None:
    x, weight = sparse(1 + (1 << 17), 1 << 14, dtype=FLOAT16), torch.ones(1 << 14, dtype=FLOAT16)
    norm.add_rms_norm(x, x, weight, 1e-5)
    norm.add_rms_norm_fp8(x, x, weight, 1e-5)


def _long_embedding() -> None:
    tokens = torch.tensor([1 << 17, 3])
    table, weight = sparse(1 + (1 << 17), 1 << 14, dtype=FLOAT16), torch.ones(1 << 14).half()
    embedding.embed_rms_norm(tokens, table, weight, 1e-5)


def _many_embedded() -> None:
    tokens, weight = torch.zeros(1 + (1 << 17), dtype=torch.int64), torch.ones(1 << 14).half()
    embedding.embed_rms_norm(tokens, floats(3, 1 << 14), weight, 1e-5)


def _many_rotated() -> None:
    tokens, num_q, num_kv = 1 + (1 << 17), 112, 8
    cache = torch.zeros(1, 16, num_kv, 128, dtype=FLOAT16)
    slots = torch.full((tokens,), -1)
    slots[-1] = 3
    rotary.rope_and_store_kv(
        sparse(tokens, (num_q + 2 * num_kv) * 128, dtype=FLOAT16),
        torch.zeros(tokens, dtype=torch.int64),
        floats(6, 128, dtype=torch.float32),
        slots,
        cache,
        cache.clone(),
        num_q_heads=num_q,
        num_kv_heads=num_kv,
    )


def _long_gates() -> None:
    x = sparse(1 + (1 << 17), 1 << 14, dtype=FLOAT16)
    activation.silu_mul(x)
    activation.silu_mul_fp8(x)
    fp8_rows.quantize_rows(x)


def _large_experts() -> None:
    experts, hidden, features = 9, 1 << 14, 1 << 13
    gate_up = sparse(experts, 2 * features, hidden, dtype=torch.uint8).view(CODES)
    down = sparse(experts, hidden, features, dtype=torch.uint8).view(CODES)
    ids = torch.arange(experts, dtype=torch.int32)[None]
    scales = torch.ones(experts, 1)
    moe.fused_experts(
        sparse(1, hidden, dtype=FLOAT16), gate_up, down, torch.ones(1, experts), ids, scales, scales
    )


def _large_weight_of_4_bits() -> None:
    blocks, outputs = (1 << 7) + 1, 1 << 20
    int4.int4_linear(
        sparse(1, blocks * 128, dtype=FLOAT16),
        sparse(blocks, outputs, 16, dtype=torch.int32),
        sparse(blocks, outputs, dtype=torch.int32),
    )


def _large_weight_of_few_rows() -> None:
    outputs, inputs = 1 + (1 << 19), 1 << 12
    weight = sparse(2 * outputs, inputs, dtype=FLOAT16)
    row_products.row_product(sparse(2, inputs, dtype=FLOAT16), weight, gate="silu")


def _large_weight() -> None:
    outputs, inputs = 1 + (1 << 20), 1 << 11
    weight = sparse(outputs, inputs, dtype=torch.int8)
    quantized.quantized_linear(
        sparse(1 + (1 << 11), inputs, dtype=FLOAT16), weight, torch.ones(outputs)
    )


_CACHE = (1 << 17) + 1, 2, 16, 8, 128
"""Blocks of both caches: element 2^31 is in the upper half."""


def _large_caches(is_fp8: bool) -> PagedKV:
    kv = sparse(*_CACHE, dtype=torch.uint8 if is_fp8 else FLOAT16)
    kv = kv.view(CODES) if is_fp8 else kv
    last = _CACHE[0] - 1
    lens = torch.tensor([17, 33], dtype=torch.int32)
    table = torch.tensor([[last, last - 1, 0], [last - 2, 1, last - 3]], dtype=torch.int32)
    exponents = None
    if is_fp8:
        sizes = (_CACHE[0], *_CACHE[2:4])
        exponents = sparse(*sizes, dtype=EXPONENTS), sparse(*sizes, dtype=EXPONENTS)
    return PagedKV(kv[:, 0], kv[:, 1], table, lens, exponents)


def _many_adapters() -> None:
    tokens, num_in = 1 + (1 << 17), 1 << 14
    lora.add_adapters(
        sparse(tokens, num_in, dtype=FLOAT16),
        sparse(tokens, num_in, dtype=FLOAT16),
        sparse(1 << 14, 16, num_in, dtype=FLOAT16),
        sparse(1 << 14, num_in, 16, dtype=FLOAT16),
        torch.full((tokens,), (1 << 14) - 1),
        (num_in,),
    )


def _far_slots(is_fp8: bool = False) -> None:
    kv = _large_caches(is_fp8)
    last = 16 * _CACHE[0] - 1
    rotary.rope_and_store_kv(
        floats(3, (16 + 2 * 8) * 128),
        torch.arange(3),
        floats(6, 128, dtype=torch.float32),
        torch.tensor([last, 5, last - 40]),
        *kv.caches,
        num_q_heads=16,
        num_kv_heads=8,
        exponents=kv.exponents,
    )


def _far_decodes(is_fp8: bool = False) -> None:
    kv = _large_caches(is_fp8)
    decode_attention.paged_decode_attention(
        floats(2, 16, 128),
        *kv.caches,
        kv.block_table,
        kv.context_lens,
        0.1,
        exponents=kv.exponents,
    )


def _far_prompts(is_fp8: bool = False) -> None:
    kv = _large_caches(is_fp8)
    bounds = torch.tensor([0, 17, 40], dtype=torch.int32)
    prefill_attention.paged_prefill_attention(
        floats(40, 16, 128),
        *kv.caches,
        kv.block_table,
        bounds,
        kv.context_lens,
        0.1,
        exponents=kv.exponents,
    )


def _long_sampling() -> None:
    rows, vocab = 1 + (1 << 12), 1 << 19
    logits = sparse(rows, vocab, dtype=FLOAT16)
    logits[-1] = floats(vocab)
    logits[0] = logits[-1]
    numbers, ones = torch.arange(rows), torch.ones(rows)
    top_k = torch.full((rows,), 40).int()
    sampling.sample_tokens(logits, numbers, numbers, ones, top_k, ones, ones - 1)


def _long_likelihoods() -> None:
    rows, vocab = 1 + (1 << 12), 1 << 19
    logits = sparse(rows, vocab, dtype=FLOAT16)
    logits[-1] = floats(vocab)
    logits[0] = logits[-1]
    sampling.token_likelihoods(logits, logits[-1].argmax().expand(rows).contiguous(), 2)


def _long_masks() -> None:
    rows, vocab = 1 + (1 << 12), 1 << 19
    scores = sparse(rows, vocab, dtype=torch.float32)
    words = sparse(rows, vocab // 32, dtype=torch.int32)
    sampling.forbid(scores, torch.arange(rows), words)
    ids = torch.arange(rows).int()
    ones = torch.ones(rows)
    starts = torch.arange(rows + 1).int()
    sampling.penalise(scores, ids, ids, starts, torch.arange(rows) - 1, ones, ones, ones)


def _long_tables() -> None:
    rows, width = 1 + (1 << 13), 1 << 18
    tables = sparse(rows, width, dtype=torch.int32)
    out = sparse(rows, width, dtype=torch.int32)
    longs = [torch.arange(rows) for _ in range(3)]
    input_prep.lay_out_step(
        tables,
        longs[0],
        longs[0],
        longs[0] % 5,
        torch.arange(rows + 1),
        longs[0],
        block_size=16,
        max_count=1,
        token_ids=longs[1],
        positions=longs[2],
        slots=torch.zeros(rows, dtype=torch.int64),
        block_table=out,
        context_lens=torch.zeros(rows, dtype=torch.int32),
    )
    one = torch.tensor([rows - 1])
    input_prep.write_rows(tables, one, torch.tensor([9]), torch.tensor([0, 3]), torch.arange(3))
    input_prep.lay_out_draws(
        tables,
        one,
        one,
        column=width - DRAW_COLUMNS,
        seeds=one.clone(),
        positions=one.clone(),
        temperatures=torch.ones(1),
        top_k=torch.ones(1).int(),
        top_p=torch.ones(1),
        min_p=torch.ones(1),
    )


@pytest.mark.parametrize(
    "launch",
    [
        _long_norms,
        _long_embedding,
        _many_embedded,
        _many_rotated,
        _long_gates,
        _large_experts,
        _large_weight_of_4_bits,
        _large_weight,
        _large_weight_of_few_rows,
        _many_adapters,
        _far_slots,
        lambda: _far_slots(is_fp8=True),
        _far_decodes,
        lambda: _far_decodes(is_fp8=True),
        _far_prompts,
        lambda: _far_prompts(is_fp8=True),
        _long_sampling,
        _long_likelihoods,
        _long_masks,
        _long_tables,
    ],
    ids=[
        "norms",
        "embedding",
        "many embedded",
        "many rotated",
        "gates",
        "experts",
        "weight of 4 bits",
        "weight",
        "weight of few rows",
        "adapters",
        "KV writes",
        "KV writes in FP8",
        "decodes",
        "decodes in FP8",
        "prompts",
        "prompts in FP8",
        "sampling",
        "likelihoods",
        "masks and penalties",
        "tables",
    ],
)
def test_elements_past_two_to_the_31_are_reached(launch: Callable[[], None]) -> None:
    """Of tensors that no test machine has the memory for: only touched pages take any."""
    with sanitized(corners=True, whole={"_sort_slots_kernel"}) as sanitizer:
        launch()

    assert sanitizer.num_launches
