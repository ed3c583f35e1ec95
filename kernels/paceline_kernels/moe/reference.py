"""A mixture of experts in plain torch: the ground truth.

A slot is one of the `top_k` places of a token: slot `token * top_k + place`.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from paceline_kernels.fp8 import CODES, widen
from paceline_kernels.fp8_rows.reference import quantize_rows


def route_experts(
    logits: Tensor,  # [tokens, experts]
    top_k: int,
    *,
    is_renormalised: bool,
) -> tuple[Tensor, Tensor]:
    """Give each token's experts: weights [tokens, top_k] in float32, ids [tokens, top_k] in int32.

    Weights are the softmax over all experts, divided by their sum where they are renormalised.
    The likeliest come first, and of equals that of the lower id.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    shares = logits.to(wide).softmax(dim=-1)
    # Experts are compared as they were given: of two that differ, a softmax may make equals.
    ids = logits.argsort(dim=-1, descending=True, stable=True)[:, :top_k]
    weights = shares.gather(1, ids)
    if is_renormalised:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights.float(), ids.to(torch.int32)


def fused_experts(
    x: Tensor,  # [tokens, hidden]
    gate_up: Tensor,  # [experts, 2 * features, hidden], of x's type or in FP8
    down: Tensor,  # [experts, hidden, features], as gate_up
    weights: Tensor,  # [tokens, top_k] float32
    ids: Tensor,  # [tokens, top_k] int32; below 0: none
    gate_up_scales: Tensor | None = None,  # [experts, 2 * features] or [experts, 1] float32
    down_scales: Tensor | None = None,  # [experts, hidden] or [experts, 1] float32
    *,
    is_gelu: bool = False,
    is_dynamic: bool = False,
) -> Tensor:  # [tokens, hidden]
    """Add up what a token's experts make of it: `down (act(gate x) * up x)`, by their weights.

    With scales the weights are in FP8. Dynamic: so are the rows that they are multiplied with,
    each with a scale of its own.
    """
    num_tokens, top_k = ids.shape
    inner = expert_product(
        x, gate_up, ids, gate_up_scales, slots_a_row=top_k, is_dynamic=is_dynamic
    )
    gate, up = inner.chunk(2, dim=-1)
    inner = (F.gelu(gate, approximate="tanh") if is_gelu else F.silu(gate)) * up
    y = expert_product(inner, down, ids, down_scales, slots_a_row=1, is_dynamic=is_dynamic)
    wide = torch.promote_types(x.dtype, torch.float32)
    weighted = y.to(wide).view(num_tokens, top_k, -1) * weights.to(wide)[..., None]
    return weighted.sum(dim=1).to(x.dtype)


def expert_product(
    x: Tensor,  # [rows, in]
    weight: Tensor,  # [experts, out, in]
    ids: Tensor,  # [tokens, top_k]
    scales: Tensor | None = None,  # [experts, out] or [experts, 1]
    *,
    slots_a_row: int,
    is_dynamic: bool = False,
) -> Tensor:  # [slots, out]
    """Multiply each slot's row, `slot // slots_a_row`, by its expert's weight."""
    dtype = x.dtype
    if is_dynamic:
        codes, row_scales = quantize_rows(x)
        x = widen(codes, dtype) * row_scales.to(dtype)[:, None]
    flat = ids.flatten()
    out = x.new_zeros(len(flat), weight.shape[1])
    for expert in flat[flat >= 0].unique().tolist():
        slots = (flat == expert).nonzero()[:, 0]
        chosen = weight[expert]
        chosen = widen(chosen, dtype) if chosen.dtype == CODES else chosen.to(dtype)
        y = x[slots // slots_a_row] @ chosen.t()
        out[slots] = y if scales is None else (y * scales[expert]).to(dtype)
    return out


def sort_slots(ids: Tensor, num_experts: int, tile: int) -> tuple[Tensor, Tensor]:
    """Sort slots by their experts into tiles of one expert each.

    Gives slots [tiles * tile], with the number of slots where a tile has none, and each tile's
    expert [tiles], -1 where a tile has no slot: as many tiles as there may be.
    """
    flat = ids.flatten()
    num_tiles = max_tiles(flat.numel(), num_experts, tile)
    order = torch.full((num_tiles * tile,), flat.numel(), dtype=torch.int32, device=ids.device)
    experts = torch.full((num_tiles,), -1, dtype=torch.int32, device=ids.device)
    at = 0
    for expert in range(num_experts):
        slots = (flat == expert).nonzero()[:, 0]
        count = -(-len(slots) // tile)
        order[at * tile : at * tile + len(slots)] = slots.to(torch.int32)
        experts[at : at + count] = expert
        at += count
    return order, experts


def max_tiles(num_slots: int, num_experts: int, tile: int) -> int:
    """Tiles that slots may fill, however they fall: each expert may have one that is not full."""
    touched = min(num_slots, num_experts)
    return touched + (num_slots - touched) // tile
