"""The product with GGUF's blocks, beside the gguf package's values in float64."""

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline_kernels.activation import reference_gelu_tanh_mul, reference_silu_mul
from paceline_kernels.cpu import BLOCK_KINDS, BlockKind, BlockMatmul, Blocks, Gate, native_ops
from paceline_testing.kernel_cases import random_floats
from paceline_testing.random_blocks import random_blocks, values_of

FLOATS = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
KINDS = pytest.mark.parametrize("kind", BLOCK_KINDS)
# What rounding to the dtype may change, of the sum of what is added.
UNITS = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8}


@pytest.fixture(params=[1, 2], ids=lambda threads: f"{threads} threads")
def matmul(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> BlockMatmul:
    ops = native_ops()
    if ops is None:
        pytest.skip("no C compiler here")
    empty = torch.empty
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)
    monkeypatch.setattr(torch, "empty", lambda *s, dtype: empty(*s, dtype=dtype).fill_(101))
    return ops.block_matmul


def _rows(rows: int, inputs: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Rows and blocks of different sizes."""
    x = random_floats(rows, inputs, dtype=torch.float32, device="cpu", seed=seed)
    of_blocks = torch.logspace(-1, 1, inputs // 32).repeat_interleave(32)
    return x.mul_(torch.logspace(-2, 2, rows)[:, None]).mul_(of_blocks).to(dtype)


def _in_bytes(x: Tensor) -> Tensor:
    """Bring the largest of 32 values to 127, round to the nearest, ties to even; float64."""
    blocks: Tensor = x.float().unflatten(1, (-1, 32))
    scales = blocks.abs().amax(dim=2, keepdim=True) / 127.0
    inverse = torch.where(scales > 0, scales.reciprocal(), 0.0)
    codes = (blocks.double() * inverse.double()).round()
    return (codes * scales.double()).flatten(1)


def _assert_near(seen: Tensor, wanted: Tensor, size: Tensor) -> None:
    error = (seen.double() - wanted).abs()
    assert (error <= UNITS[seen.dtype] * size).all(), float((error / size).max())


@FLOATS
@KINDS
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 40])
@pytest.mark.parametrize("sizes", [(40, 768), (97, 256)], ids=str)
def test_products_are_those_of_the_files_values(
    matmul: BlockMatmul, kind: BlockKind, rows: int, sizes: tuple[int, int], dtype: torch.dtype
) -> None:
    """Every height of a tile, and panels that are not full: no weight moves at all."""
    outputs, inputs = sizes
    x, blocks = _rows(rows, inputs, dtype), random_blocks(kind, outputs, inputs)
    bias = random_floats(outputs, dtype=torch.float32, device="cpu")
    weight, in_bytes = values_of(blocks), _in_bytes(x)
    wanted, size = in_bytes @ weight.t(), in_bytes.abs() @ weight.abs().t()
    packed = matmul.pack([blocks])

    _assert_near(matmul(x, packed), wanted, size)
    _assert_near(matmul(x, packed, bias), wanted + bias.double(), size + bias.double().abs())


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("inputs", [32, 96, 576])
def test_rows_need_not_be_whole_chunks(matmul: BlockMatmul, kind: BlockKind, inputs: int) -> None:
    """These kinds have blocks of 32; a chunk is 256."""
    x, blocks = _rows(3, inputs, torch.float32), random_blocks(kind, 33, inputs)
    weight, in_bytes = values_of(blocks), _in_bytes(x)

    seen = matmul(x, matmul.pack([blocks]))

    _assert_near(seen, in_bytes @ weight.t(), in_bytes.abs() @ weight.abs().t())


@KINDS
def test_bytes_for_what_is_multiplied_cost_little(matmul: BlockMatmul, kind: BlockKind) -> None:
    """Each value moves by at most half a step, a 254th of the largest of its 32."""
    x, blocks = _rows(9, 512, torch.float32), random_blocks(kind, 64, 512)
    weight = values_of(blocks)
    steps = x.double().unflatten(1, (-1, 32)).abs().amax(dim=2, keepdim=True).div(254)
    moved = steps.expand(-1, -1, 32).flatten(1) * 1.0001

    seen = matmul(x, matmul.pack([blocks]))

    error = (seen.double() - x.double() @ weight.t()).abs()
    assert (error <= moved @ weight.abs().t()).all()
    assert error.norm() < 0.02 * (x.double() @ weight.t()).norm()


@FLOATS
def test_kinds_may_differ_within_one_product(matmul: BlockMatmul, dtype: torch.dtype) -> None:
    """A file keeps v in more bits than q and k; ragged parts leave panels that are not full."""
    kinds: list[tuple[BlockKind, int]] = [("Q4_K", 40), ("Q4_K", 33), ("Q6_K", 33), ("Q8_0", 1)]
    parts = [random_blocks(kind, outputs, 256, seed) for seed, (kind, outputs) in enumerate(kinds)]
    x, weight = _rows(7, 256, dtype), torch.cat([values_of(part) for part in parts])
    in_bytes = _in_bytes(x)

    seen = matmul(x, matmul.pack(parts))

    _assert_near(seen, in_bytes @ weight.t(), in_bytes.abs() @ weight.abs().t())


@FLOATS
@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("sizes", [(1, 16), (5, 48), (200, 320)], ids=str)
def test_gated_products_agree_with_float64(
    matmul: BlockMatmul,
    kind: BlockKind,
    gate: Gate,
    sizes: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    """The gate and what it lets through are halves of the weight, and meet in one panel."""
    rows, features = sizes
    x = random_floats(rows, 256, dtype=dtype, device="cpu")
    blocks = random_blocks(kind, 2 * features, 256)
    reference = reference_silu_mul if gate == "silu" else reference_gelu_tanh_mul
    wanted = reference(_in_bytes(x) @ values_of(blocks).t())

    seen = matmul.gated(x, matmul.pack([blocks], is_gated=True), gate)

    tolerance = 1e-5 if dtype == torch.float32 else 2.0**-7
    torch.testing.assert_close(
        seen.double(), wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().mean())
    )


@FLOATS
@KINDS
def test_rows_of_a_weight_are_its_values(
    matmul: BlockMatmul, kind: BlockKind, dtype: torch.dtype
) -> None:
    """An embedding is looked up where the head's panels are."""
    blocks = random_blocks(kind, 70, 512)
    ids = torch.tensor([69, 0, 33, 33])

    seen = matmul.rows(matmul.pack([blocks]), ids, dtype)

    torch.testing.assert_close(seen, values_of(blocks)[ids].to(dtype), rtol=1e-6, atol=1e-7)


@KINDS
def test_values_are_those_of_the_package_bit_for_bit(matmul: BlockMatmul, kind: BlockKind) -> None:
    """A file gives the same model whether its weights are dequantised by C or by Python."""
    blocks = random_blocks(kind, 37, 768)

    assert torch.equal(_bits(matmul.values(blocks)), _bits(values_of(blocks).float()))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_values_of_rows_that_are_no_whole_chunks(matmul: BlockMatmul, kind: BlockKind) -> None:
    """These kinds have blocks of 32; a chunk is 256."""
    blocks = random_blocks(kind, 3, 288)

    assert torch.equal(_bits(matmul.values(blocks)), _bits(values_of(blocks).float()))


def _bits(values: Tensor) -> Tensor:
    """Tell a minus zero from a zero; what is no number is one and the same."""
    return values.nan_to_num(nan=1e30, posinf=torch.inf, neginf=-torch.inf).view(torch.int32)


@KINDS
@pytest.mark.parametrize("half", [0x7C00, 0xFC00, 0x7E00, 0x0001, 0x83FF, 0x8000])
def test_scales_may_be_any_half(matmul: BlockMatmul, kind: BlockKind, half: int) -> None:
    """Infinite, no number, below the smallest normal one, or minus zero: as the package has it."""
    blocks = random_blocks(kind, 2, 256)
    at = 208 if kind == "Q6_K" else 0
    blocks.rows[1, at], blocks.rows[1, at + 1] = half & 255, half >> 8

    with np.errstate(invalid="ignore"):
        wanted = values_of(blocks)
    assert torch.equal(_bits(matmul.values(blocks)), _bits(wanted.float()))


@KINDS
def test_a_row_does_not_depend_on_the_rows_beside_it(matmul: BlockMatmul, kind: BlockKind) -> None:
    """Else the same request would get other tokens in another batch."""
    x, packed = _rows(400, 512, torch.float32), matmul.pack([random_blocks(kind, 64, 512)])

    together = matmul(x, packed)

    for row in (0, 13, 14, 250, 399):
        assert torch.equal(matmul(x[row : row + 1], packed)[0], together[row])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@KINDS
def test_what_is_not_a_number_stays_in_its_row(
    matmul: BlockMatmul, kind: BlockKind, bad: float
) -> None:
    """The sampler ends the request of that row, and no other."""
    x, packed = _rows(20, 256, torch.float32), matmul.pack([random_blocks(kind, 64, 256)])
    x[3, 5] = bad

    product = matmul(x, packed)

    assert product[3].isnan().all()
    assert product[[row for row in range(20) if row != 3]].isfinite().all()


@KINDS
def test_the_smallest_rows_are_no_trouble(matmul: BlockMatmul, kind: BlockKind) -> None:
    """Zeros give zeros, and so do values whose scale a float32 hardly holds."""
    x, packed = torch.zeros(2, 256), matmul.pack([random_blocks(kind, 40, 256)])
    x[1] = 1e-40

    assert not matmul(x, packed).any()


@KINDS
def test_a_weight_takes_what_the_file_takes(matmul: BlockMatmul, kind: BlockKind) -> None:
    """But for the six bits of a K kind's scales, which become bytes: 4 of 144, or of 176."""
    blocks = random_blocks(kind, 64, 512)

    packed = matmul.pack([blocks])

    more = 4 / 144 if kind.endswith("_K") else 0
    assert blocks.rows.nbytes <= packed.packed.nbytes <= blocks.rows.nbytes * (1 + more)


def test_a_wrong_tensor_is_refused(matmul: BlockMatmul) -> None:
    """C would read past its end, or what is meant for another product."""
    plain = matmul.pack([random_blocks("Q8_0", 32, 64)])
    gated = matmul.pack([random_blocks("Q8_0", 32, 64)], is_gated=True)
    mixed = matmul.pack([random_blocks("Q8_0", 33, 64), random_blocks("Q4_0", 33, 64)])

    with pytest.raises(ValueError, match=r"x must be contiguous \(2, 64\)"):
        matmul(torch.ones(2, 32), plain)
    with pytest.raises(ValueError, match="rows must be float32 or bfloat16"):
        matmul(torch.ones(2, 64, dtype=torch.float16), plain)
    with pytest.raises(ValueError, match=r"bias must be contiguous \(32,\)"):
        matmul(torch.ones(2, 64), plain, torch.ones(31))
    with pytest.raises(ValueError, match="multiple of 32 outputs, got \\[48\\]"):
        matmul.pack([random_blocks("Q8_0", 48, 64)], is_gated=True)
    with pytest.raises(ValueError, match="must have 64 inputs"):
        matmul.pack([random_blocks("Q8_0", 32, 64), random_blocks("Q8_0", 32, 32)])
    with pytest.raises(ValueError, match="whole blocks of 34 bytes"):
        Blocks("Q8_0", torch.zeros(2, 35, dtype=torch.uint8))
    with pytest.raises(ValueError, match="packed as gated"):
        matmul.gated(torch.ones(2, 64), plain, "silu")
    with pytest.raises(ValueError, match="a gated weight is for"):
        matmul(torch.ones(2, 64), gated)
    with pytest.raises(ValueError, match="ids must be below 32"):
        matmul.rows(plain, torch.tensor([32]), torch.float32)
    with pytest.raises(ValueError, match="looked up in one weight"):
        matmul.rows(mixed, torch.tensor([0]), torch.float32)


def test_a_row_is_cut_between_blocks(matmul: BlockMatmul) -> None:
    """Ranks that share a product each hold some of its inputs."""
    blocks, x = random_blocks("Q4_0", 40, 128), _rows(2, 64, torch.float32)

    part = blocks.cut_inputs(64, 64)

    weight, in_bytes = values_of(blocks)[:, 64:], _in_bytes(x)
    _assert_near(
        matmul(x, matmul.pack([part])), in_bytes @ weight.t(), in_bytes.abs() @ weight.abs().t()
    )
    with pytest.raises(ValueError, match="cut between blocks of 32 values, got 0 and 48"):
        blocks.cut_inputs(0, 48)
