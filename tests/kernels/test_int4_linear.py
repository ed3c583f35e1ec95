from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from paceline_kernels.int4 import (
    Int4Weight,
    dequantize,
    from_awq,
    from_gptq,
    kernel,
    pack,
    reference_int4_linear,
)
from paceline_kernels.tuned import SHIPPED, Gpu, blocks_of
from paceline_testing.int4_unpacking import unpack
from paceline_testing.kernel_cases import DTYPES, assert_near, random_floats

FLOAT64 = torch.float64
# Which output each 4 bits of a word of AWQ hold, as its own packing writes them.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def random_parts(
    num_out: int, num_in: int, group: int, *, seed: int = 2
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values [out, in], scales and zero points [groups, out]."""
    generator = torch.Generator().manual_seed(seed)
    num_groups = num_in // group
    values = torch.randint(0, 16, (num_out, num_in), generator=generator)
    zeros = torch.randint(0, 16, (num_groups, num_out), generator=generator)
    # Sums near 1, so that an absolute tolerance means as much as a relative one.
    scales = (0.5 + torch.rand((num_groups, num_out), generator=generator)) / (8 * num_in**0.5)
    return values, scales.half(), zeros


def random_weight(num_out: int, num_in: int, group: int, device: str) -> Int4Weight:
    values, scales, zeros = random_parts(num_out, num_in, group)
    weight, groups = pack(values, scales, zeros)
    return Int4Weight(weight.to(device), groups.to(device))


@pytest.mark.parametrize("rows", [1, 17, 70])
@pytest.mark.parametrize(
    ("num_out", "num_in", "group"),
    [(64, 128, 128), (70, 96, 32), (1, 3, 3), (129, 320, 64), (130, 100, 100), (40, 1280, 128)],
    ids=str,
)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_int4_linear_agrees_with_float64(
    rows: int,
    num_out: int,
    num_in: int,
    group: int,
    *,
    has_bias: bool,
    dtype: torch.dtype,
    device: str,
) -> None:
    """Sizes that no tile divides, groups of every size, and one or several parts."""
    x = random_floats(rows, num_in, dtype=dtype, device=device)
    weight, groups = random_weight(num_out, num_in, group, device)
    bias = random_floats(num_out, dtype=dtype, device=device, seed=1) if has_bias else None

    seen = kernel.int4_linear(x, weight, groups, bias)

    wanted_bias = None if bias is None else bias.double()
    assert_near(seen, reference_int4_linear(x.double(), weight, groups, wanted_bias))


@pytest.mark.parametrize("gpu", [Gpu("", (8, 0)), Gpu("", (9, 0)), Gpu("", (10, 0))], ids=str)
@pytest.mark.parametrize("rows", [3, 17, 70])
@pytest.mark.parametrize(
    "sizes", [(129, 320, 64), (70, 224, 32), (130, 100, 100), (40, 1280, 128)], ids=str
)
def test_every_generations_tiles_agree_with_float64(
    gpu: Gpu, rows: int, sizes: tuple[int, int, int], device: str
) -> None:
    """Some unpack all of a block before they multiply, others a quarter at a time."""
    num_out, num_in, group = sizes
    x = random_floats(rows, num_in, dtype=torch.float16, device=device)
    weight, groups = random_weight(num_out, num_in, group, device)

    with blocks_of.as_if(SHIPPED, gpu):
        seen = kernel.int4_linear(x, weight, groups)

    assert_near(seen, reference_int4_linear(x.double(), weight, groups))


def emulated_fma(of: torch.dtype) -> Any:
    """What the assembly computes of both halves of each word, in torch."""

    def fma(x: Any, y: Any, z: Any, dtype: object) -> Any:
        del dtype
        wide = [
            torch.as_tensor(np.broadcast_to(each, x.handle.data.shape).astype(np.int32)).view(of)
            for each in (x.handle.data, y, z.handle.data)
        ]
        result = (wide[0].double() * wide[1].double() + wide[2].double()).to(of)
        return tl.tensor(TensorHandle(result.view(torch.int32).numpy(), tl.int32), x.type)

    return fma


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("of", [torch.float16, torch.bfloat16], ids=str)
def test_the_assembly_makes_values_less_their_zero_points(
    of: torch.dtype, place: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all values and zero points; the bits around it are what the interpreter computes."""
    if device != "cpu":
        pytest.skip("a GPU runs the assembly itself")
    monkeypatch.setattr(kernel, "_IS_COMPILED", True)
    monkeypatch.setattr(kernel, "_fma_pairs", emulated_fma(of))
    values = torch.stack([torch.arange(16), torch.arange(16).flip(0)], dim=1).view(1, 32)
    values = values.repeat(16, 4)
    weight, _ = pack(values, torch.ones(1, 16))
    zeros, seen = torch.arange(16, dtype=torch.int32), torch.zeros(16, 32, dtype=torch.int16)

    dtype = tl.float16 if of == torch.float16 else tl.bfloat16
    run: Any = unpack
    run[(1,)](weight, zeros, seen, place=place, dtype=dtype)

    assert torch.equal(seen.view(of).double(), values[:, :32] - zeros[:, None].double())


def test_reference_subtracts_zero_points_and_scales_each_group() -> None:
    """The ground truth itself, by hand: two groups of 32 inputs."""
    values = torch.zeros(2, 64, dtype=torch.int64)
    values[0, 0], values[0, 63], values[1, 32] = 15, 3, 9
    zeros = torch.zeros(2, 2, dtype=torch.int64)
    zeros[1, 0] = 1
    scales = torch.tensor([[0.5, 1.0], [2.0, 4.0]])
    weight, groups = pack(values, scales, zeros)

    seen = reference_int4_linear(torch.ones(1, 64, dtype=FLOAT64), weight, groups)

    # 15 * 0.5 + 2 * (3 - 32 * 1), and 9 * 4
    assert seen.tolist() == [[7.5 - 58.0, 36.0]]


@pytest.mark.parametrize("scale", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_scales_of_16_bits_keep_all_their_bits(scale: torch.dtype) -> None:
    """The zero point lies in bits that they never use, the smallest of them too."""
    bits = torch.arange(1, 0x7C00, 7, dtype=torch.int32).to(torch.int16)
    scales = bits.view(scale)[None]
    values = torch.full((scales.shape[1], 4), 15)

    weight, groups = pack(values, scales, torch.full_like(scales, 14).int())

    assert torch.equal(dequantize(weight, groups, 4, torch.float32)[:, 0], scales[0].float())


def awq_words(values: torch.Tensor) -> torch.Tensor:
    """[rows, columns / 8], as AWQ packs eight neighbours of a row."""
    words = torch.zeros(values.shape[0], values.shape[1] // 8, dtype=torch.int64)
    for place, column in enumerate(AWQ_ORDER):
        words |= values[:, column::8] << (4 * place)
    return words.to(torch.uint32).view(torch.int32)


def gptq_words(values: torch.Tensor) -> torch.Tensor:
    """[rows, columns / 8], as GPTQ packs eight neighbours of a row."""
    words = torch.zeros(values.shape[0], values.shape[1] // 8, dtype=torch.int64)
    for place in range(8):
        words |= values[:, place::8] << (4 * place)
    return words.to(torch.uint32).view(torch.int32)


def test_awq_tensors_are_laid_out() -> None:
    values, scales, zeros = random_parts(40, 256, 64)

    seen = from_awq(awq_words(values.t()), awq_words(zeros), scales)

    for each, wanted in zip(seen, pack(values, scales, zeros), strict=True):
        assert torch.equal(each, wanted)


@pytest.mark.parametrize("less_one", [True, False], ids=["v1", "v2"])
def test_gptq_tensors_are_laid_out(*, less_one: bool) -> None:
    """Its first version keeps zero points less one, and 0 as 15."""
    values, scales, zeros = random_parts(40, 256, 64)
    kept = (zeros - int(less_one)) & 15
    g_idx = torch.arange(256, dtype=torch.int32) // 64

    seen = from_gptq(
        gptq_words(values).t(), gptq_words(kept), scales, g_idx, are_zeros_less_one=less_one
    )

    for each, wanted in zip(seen, pack(values, scales, zeros), strict=True):
        assert torch.equal(each, wanted)


def test_symmetric_weights_have_their_zero_in_the_middle() -> None:
    values, scales, _ = random_parts(40, 256, 64)

    seen = from_gptq(gptq_words(values).t(), None, scales)

    for each, wanted in zip(seen, pack(values, scales), strict=True):
        assert torch.equal(each, wanted)
    assert torch.equal(
        dequantize(*seen, 256, FLOAT64)[:, :64],
        (values[:, :64] - 8) * scales[0].double()[:, None],
    )


def test_inputs_in_another_order_than_their_groups_are_refused() -> None:
    """Each would need its own scale: the kernel has one for neighbours."""
    values, scales, zeros = random_parts(8, 128, 64)

    with pytest.raises(ValueError, match="g_idx must name groups of 64 inputs in order"):
        from_gptq(gptq_words(values).t(), gptq_words(zeros), scales, torch.arange(128) % 2)


def test_groups_of_other_sizes_are_refused() -> None:
    values, scales, zeros = random_parts(8, 96, 48)

    with pytest.raises(ValueError, match=r"groups must be of 32, 64, 128 or of all inputs, got 2"):
        pack(values, scales, zeros)


def test_a_weight_of_another_layout_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weight must be contiguous \[2, out, 16\] int32 on cpu"):
        kernel.int4_linear(
            torch.zeros(2, 256),
            torch.zeros(1, 3, 16, dtype=torch.int32),
            torch.zeros(2, 3, dtype=torch.int32),
        )


@pytest.mark.parametrize(
    ("programs", "num_blocks", "parts"),
    [(32, 32, 8), (32, 112, 16), (512, 32, 1), (1, 3, 1), (300, 32, 2)],
)
def test_few_programs_share_the_inputs_among_them(
    programs: int, num_blocks: int, parts: int
) -> None:
    assert kernel.num_parts(programs=programs, wanted_programs=512, num_blocks=num_blocks) == parts
