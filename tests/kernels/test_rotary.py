import pytest
import torch
from torch import Tensor

from paceline_kernels.rotary import kernel, reference_rope_and_store_kv
from paceline_testing.kernel_cases import DTYPES, Heads, assert_near, random_floats

MAX_LEN = 50
SLOTS = [0, 5, -1, 16, 33, 31, -1]  # ragged, over three blocks, two tokens not stored
CASES = [
    Heads(9, 3, 64),
    Heads(9, 3, 64, has_norm=True),
    Heads(1, 1, 64, block_size=32),
    Heads(14, 2, 64),
    Heads(4, 2, 96, has_norm=True),
    Heads(32, 8, 128),
    Heads(2, 1, 256, has_norm=True),
]


def some_angles(size: int, device: str) -> Tensor:
    """The table of cosines and sines, as a model makes it."""
    frequencies = 1e4 ** (-torch.arange(size // 2, dtype=torch.float64) * 2 / size)
    angles = torch.arange(MAX_LEN, dtype=torch.float64)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float().to(device)


@pytest.mark.parametrize("heads", CASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_and_store_agrees_with_float64(heads: Heads, dtype: torch.dtype, device: str) -> None:
    """Queries, both caches, and every slot that must be left alone."""
    num_heads = heads.num_q + 2 * heads.num_kv
    qkv = random_floats(len(SLOTS), num_heads * heads.size, dtype=dtype, device=device)
    norms = random_floats(2, heads.size, dtype=dtype, device=device, seed=1)
    # A block in front of the caches: there a token without a slot would land.
    memory = random_floats(
        5, 2, heads.block_size, heads.num_kv, heads.size, dtype=dtype, device=device, seed=2
    )
    wanted_memory = memory.double()
    positions = torch.tensor([0, 49, 7, 1, 1, 30, 2], device=device)
    slots = torch.tensor(SLOTS, device=device)
    angles = some_angles(heads.size, device)

    q = kernel.rope_and_store_kv(
        qkv,
        positions,
        angles,
        slots,
        *memory[1:].unbind(1),
        num_q_heads=heads.num_q,
        num_kv_heads=heads.num_kv,
        q_norm=norms[0] if heads.has_norm else None,
        k_norm=norms[1] if heads.has_norm else None,
    )
    wanted_q = reference_rope_and_store_kv(
        qkv.double(),
        positions,
        angles.double(),
        slots,
        *wanted_memory[1:].unbind(1),
        num_q_heads=heads.num_q,
        num_kv_heads=heads.num_kv,
        q_norm=norms[0].double() if heads.has_norm else None,
        k_norm=norms[1].double() if heads.has_norm else None,
    )

    assert_near(q, wanted_q)
    assert_near(memory, wanted_memory)


def test_reference_turns_pairs_half_a_head_apart() -> None:
    """The ground truth itself, as a product of complex numbers."""
    qkv = random_floats(3, 3 * 64, dtype=torch.float64, device="cpu")
    caches = torch.zeros(2, 1, 16, 1, 64, dtype=torch.float64)
    angles = some_angles(64, "cpu").double()
    positions = torch.tensor([0, 3, 41])

    q = reference_rope_and_store_kv(
        qkv, positions, angles, torch.tensor([0, 1, 2]), *caches, num_q_heads=1, num_kv_heads=1
    )

    turn = torch.complex(*angles[positions].chunk(2, dim=-1))
    parts = [
        torch.complex(*part.chunk(2, dim=-1)) * turn for part in torch.split(qkv, 64, dim=-1)[:2]
    ]
    wanted_q, wanted_k = (torch.cat((part.real, part.imag), dim=-1) for part in parts)
    torch.testing.assert_close(q[:, 0], wanted_q)
    torch.testing.assert_close(caches[0, 0, :3, 0], wanted_k)
    torch.testing.assert_close(caches[1, 0, :3, 0], qkv[:, 128:])
