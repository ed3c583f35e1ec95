import pytest
import torch

from paceline_kernels.fp8 import CODES
from paceline_kernels.moe import (
    kernel,
    reference_expert_product,
    reference_fused_experts,
    reference_route_experts,
    reference_sort_slots,
)
from paceline_testing.kernel_cases import DTYPES, FLOAT64, assert_near, random_floats

FP8 = pytest.mark.fp8


def random_ids(num_tokens: int, num_experts: int, top_k: int, device: str) -> torch.Tensor:
    """Distinct experts of each token; low ids are asked for more often, the last by nobody."""
    generator = torch.Generator().manual_seed(3)
    odds = torch.linspace(3, 0, num_experts).exp()
    odds[-1] = 0 if num_experts > top_k else odds[-1]
    ids = torch.multinomial(odds.expand(num_tokens, -1), top_k, generator=generator)
    return ids.to(torch.int32).to(device)


def random_weight(
    sizes: tuple[int, int, int], *, dtype: torch.dtype, device: str, scales: str, seed: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A weight [experts, out, in] whose products are near 1, and scales where it is in FP8."""
    num_experts, num_out, num_in = sizes
    wide = random_floats(*sizes, dtype=FLOAT64, device=device, seed=seed)
    if scales == "none":
        return (wide / num_in**0.5).to(dtype), None
    generator = torch.Generator().manual_seed(seed)
    shape = (num_experts, num_out if scales == "outputs" else 1)
    factors = (0.5 + torch.rand(shape, generator=generator)) / (64 * num_in**0.5)
    return (64 * wide).clamp(-448, 448).to(CODES), factors.to(device)


KINDS = (
    pytest.param("none", id="own"),
    pytest.param("outputs", id="fp8 by output", marks=FP8),
    pytest.param("tensor", id="fp8 by tensor", marks=FP8),
)
# Tokens, experts, experts of a token, hidden, features: decodes, ragged, and tiles of 64 and 128.
SIZES = (
    (1, 8, 2, 64, 32),
    (7, 5, 3, 70, 50),
    (3, 16, 8, 33, 17),
    (40, 4, 2, 48, 40),
    (90, 2, 1, 40, 24),
)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("scales", KINDS)
@pytest.mark.parametrize("is_gelu", [False, True], ids=["silu", "gelu"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_experts_agree_with_float64(
    sizes: tuple[int, int, int, int, int],
    scales: str,
    *,
    is_gelu: bool,
    dtype: torch.dtype,
    device: str,
) -> None:
    """Sizes that no tile divides, experts that nobody asks for, and others that fill tiles."""
    num_tokens, num_experts, top_k, hidden, features = sizes
    x = random_floats(num_tokens, hidden, dtype=dtype, device=device)
    ids = random_ids(num_tokens, num_experts, top_k, device)
    weights = torch.rand(ids.shape, generator=torch.Generator().manual_seed(4)).to(device)
    gate_up, gate_up_scales = random_weight(
        (num_experts, 2 * features, hidden), dtype=dtype, device=device, scales=scales, seed=1
    )
    down, down_scales = random_weight(
        (num_experts, hidden, features), dtype=dtype, device=device, scales=scales, seed=2
    )

    seen = kernel.fused_experts(
        x, gate_up, down, weights, ids, gate_up_scales, down_scales, is_gelu=is_gelu
    )

    wanted = reference_fused_experts(
        x.double(),
        gate_up if scales != "none" else gate_up.double(),
        down if scales != "none" else down.double(),
        weights,
        ids,
        None if gate_up_scales is None else gate_up_scales.double(),
        None if down_scales is None else down_scales.double(),
        is_gelu=is_gelu,
    )
    assert_near(seen, wanted)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("scales", ["outputs", "tensor"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.fp8
def test_products_of_fp8_with_fp8_agree_with_float64(
    sizes: tuple[int, int, int, int, int], scales: str, dtype: torch.dtype, device: str
) -> None:
    """The rows are codes times 2^-8, so that only sums may differ."""
    num_tokens, num_experts, top_k, hidden, features = sizes
    x = 100 * random_floats(num_tokens, hidden, dtype=FLOAT64, device=device)
    x[:, 0] = 448
    x = x.clamp(-448, 448).to(CODES).to(dtype) / 256
    ids = random_ids(num_tokens, num_experts, top_k, device)
    weight, factors = random_weight(
        (num_experts, features, hidden), dtype=dtype, device=device, scales=scales, seed=1
    )
    assert factors is not None

    seen = kernel.expert_product(x, weight, ids, factors, slots_a_row=top_k, is_dynamic=True)

    wanted = reference_expert_product(
        x.double(), weight, ids, factors.double(), slots_a_row=top_k, is_dynamic=True
    )
    assert_near(seen, wanted)


@pytest.mark.parametrize("is_gelu", [False, True], ids=["silu", "gelu"])
@pytest.mark.fp8
def test_experts_in_fp8_throughout_agree_with_the_reference(*, is_gelu: bool, device: str) -> None:
    """Between the products a code may fall to either side, which no row's length shows."""
    x = random_floats(9, 64, dtype=torch.float32, device=device)
    ids = random_ids(9, 6, 2, device)
    weights = torch.rand(ids.shape, generator=torch.Generator().manual_seed(4)).to(device)
    gate_up, up_scales = random_weight(
        (6, 96, 64), dtype=x.dtype, device=device, scales="outputs", seed=1
    )
    down, down_scales = random_weight(
        (6, 64, 48), dtype=x.dtype, device=device, scales="outputs", seed=2
    )
    told = (gate_up, down, weights, ids, up_scales, down_scales)

    seen = kernel.fused_experts(x, *told, is_gelu=is_gelu, is_dynamic=True)

    wanted = reference_fused_experts(x, *told, is_gelu=is_gelu, is_dynamic=True)
    error = (seen - wanted).norm(dim=1) / wanted.norm(dim=1)
    assert error.max() < 1e-2


@pytest.mark.parametrize("is_dynamic", [False, pytest.param(True, marks=FP8)], ids=["own", "fp8"])
def test_slots_without_an_expert_add_nothing(*, is_dynamic: bool, device: str) -> None:
    """A token may have none at all; what is not computed is not read, whatever lies there."""
    x = random_floats(9, 64, dtype=torch.float32, device=device)
    ids = random_ids(9, 6, 2, device)
    ids[2, 0], ids[5, 1], ids[7] = -1, -1, -1
    weights = torch.rand(ids.shape, generator=torch.Generator().manual_seed(4)).to(device)
    scales = "outputs" if is_dynamic else "none"
    gate_up, up_scales = random_weight(
        (6, 96, 64), dtype=x.dtype, device=device, scales=scales, seed=1
    )
    down, down_scales = random_weight(
        (6, 64, 48), dtype=x.dtype, device=device, scales=scales, seed=2
    )
    told = (gate_up, down, weights, ids, up_scales, down_scales)

    seen = kernel.fused_experts(x, *told, is_dynamic=is_dynamic)

    wanted = reference_fused_experts(x, *told, is_dynamic=is_dynamic)
    torch.testing.assert_close(seen, wanted, rtol=5e-2, atol=5e-2)
    assert not seen[7].any()
    assert seen[2].any()


def test_slots_are_added_in_one_order(device: str) -> None:
    """Equal inputs give equal bits, and a token's result does not depend on its neighbours'."""
    x = random_floats(9, 64, dtype=torch.float32, device=device)
    ids = random_ids(9, 6, 2, device)
    weights = torch.rand(ids.shape, generator=torch.Generator().manual_seed(4)).to(device)
    gate_up, _ = random_weight((6, 96, 64), dtype=x.dtype, device=device, scales="none", seed=1)
    down, _ = random_weight((6, 64, 48), dtype=x.dtype, device=device, scales="none", seed=2)

    whole = kernel.fused_experts(x, gate_up, down, weights, ids)
    alone = kernel.fused_experts(x[4:5], gate_up, down, weights[4:5], ids[4:5])

    assert torch.equal(kernel.fused_experts(x, gate_up, down, weights, ids), whole)
    assert torch.equal(alone[0], whole[4])


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "top_k"), [(1, 8, 2), (9, 60, 4), (70, 512, 32), (5, 3, 3)]
)
@pytest.mark.parametrize("is_renormalised", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_routes_agree_with_float64(
    num_tokens: int,
    num_experts: int,
    top_k: int,
    *,
    is_renormalised: bool,
    dtype: torch.dtype,
    device: str,
) -> None:
    """Every place of every token, for numbers of experts that are no powers of two as well."""
    logits = random_floats(num_tokens, num_experts, dtype=dtype, device=device)

    weights, ids = kernel.route_experts(logits, top_k, is_renormalised=is_renormalised)

    wanted, wanted_ids = reference_route_experts(
        logits.double(), top_k, is_renormalised=is_renormalised
    )
    assert torch.equal(ids, wanted_ids)
    torch.testing.assert_close(weights, wanted, rtol=1e-5, atol=1e-6)


def test_of_equals_the_first_expert_is_taken(device: str) -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0], [0.0, 0.0, 0.0, 0.0]], device=device)

    _, ids = kernel.route_experts(logits, 2, is_renormalised=True)

    assert ids.tolist() == [[1, 2], [0, 1]]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_rows_without_numbers_name_experts_that_there_are(value: float, device: str) -> None:
    """A padding row may hold anything, and its ids say which memory is read."""
    logits = torch.full((3, 5), value, device=device)
    logits[1, :] = torch.arange(5)

    _, ids = kernel.route_experts(logits, 3, is_renormalised=True)

    assert ids[1].tolist() == [4, 3, 2]
    assert all(len({*row}) == 3 and {*row} <= {*range(5)} for row in ids.tolist())


@pytest.mark.parametrize("tile", [16, 64])
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "top_k"),
    [(1, 8, 2), (9, 60, 4), (700, 8, 2), (600, 2, 2), (33, 128, 8)],
)
def test_slots_are_sorted_by_expert(
    tile: int, num_tokens: int, num_experts: int, top_k: int, device: str
) -> None:
    """Into whole tiles, in order within an expert, and every tile that is left over says so."""
    ids = random_ids(num_tokens, num_experts, top_k, device)

    order, experts = kernel.sort_slots(ids, num_experts, tile)

    wanted, wanted_experts = reference_sort_slots(ids, num_experts, tile)
    used = int((wanted_experts >= 0).sum()) * tile
    assert torch.equal(experts, wanted_experts)
    assert torch.equal(order[:used], wanted[:used])


@pytest.mark.parametrize(
    ("num_slots", "num_experts", "tile"), [(2, 8, 16), (400, 8, 16), (8, 8, 1)]
)
def test_no_routing_needs_more_tiles_than_there_may_be(
    num_slots: int, num_experts: int, tile: int
) -> None:
    """The worst is one slot for each expert but one, and the rest for that."""
    worst = torch.arange(num_slots).clamp(max=num_experts - 1).view(-1, 1).to(torch.int32)

    _, experts = reference_sort_slots(worst, num_experts, tile)

    assert len(experts) >= int((experts >= 0).sum()) > len(experts) - 2


def test_reference_weighs_what_each_expert_makes(device: str) -> None:
    """The ground truth itself, by hand: one token, two of three experts, one feature."""
    x = torch.tensor([[1.0, 2.0]], dtype=FLOAT64, device=device)
    gate_up = torch.tensor([[[1, 0], [0, 1]], [[0, 0], [0, 0]], [[0, 1], [1, 0]]], device=device)
    down = torch.tensor([[[1], [3]], [[1], [1]], [[5], [0]]], device=device)
    weights = torch.tensor([[0.25, 0.75]], device=device)
    ids = torch.tensor([[0, 2]], dtype=torch.int32, device=device)

    seen = reference_fused_experts(x, gate_up.double(), down.double(), weights, ids)

    first, second = 2 / (1 + torch.tensor(-1.0).exp()), 2 / (1 + torch.tensor(-2.0).exp())
    wanted = [[0.25 * first + 0.75 * 5 * second, 0.75 * first]]
    torch.testing.assert_close(seen, torch.tensor(wanted, dtype=FLOAT64, device=device))


@pytest.mark.parametrize(
    ("slots", "experts", "rows"),
    [(8, 128, 16), (64, 8, 16), (256, 8, 64), (256, 128, 16), (4096, 8, 128)],
)
def test_tiles_hold_twice_an_experts_share(slots: int, experts: int, rows: int) -> None:
    assert kernel.class_of(slots, experts) == rows


def test_experts_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"down must be contiguous \[2, 4, 3\] float32 on cpu"):
        kernel.fused_experts(
            torch.zeros(1, 4),
            torch.zeros(2, 6, 4),
            torch.zeros(2, 4, 6),
            torch.zeros(1, 2),
            torch.zeros(1, 2, dtype=torch.int32),
        )


def test_more_experts_than_there_are_are_refused() -> None:
    with pytest.raises(
        ValueError, match="top_k must be 1 to 32 of at most 512 experts, got 5 of 4"
    ):
        kernel.route_experts(torch.zeros(1, 4), 5, is_renormalised=True)
