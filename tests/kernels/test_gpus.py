"""How many programs fit a multiprocessor, worked out by hand from NVIDIA's rules."""

import pytest

from paceline_testing.gpus import GPUS, occupancy, programs_per_multiprocessor

HOPPER = GPUS["sm_90"]


@pytest.mark.parametrize(
    ("num_warps", "registers", "shared_bytes", "programs"),
    [
        (4, 32, 0, 16),
        (1, 32, 0, 32),
        (8, 250, 0, 1),
        (8, 128, 0, 2),
        (1, 129, 0, 12),
        (4, 32, 75 * 1024, 3),
        (4, 32, 76 * 1024, 2),
        (4, 32, 227 * 1024, 1),
        (4, 32, 227 * 1024 + 1, 0),
        (16, 160, 0, 0),
    ],
    ids=[
        "64 warps at most",
        "32 programs at most",
        "registers for one",
        "registers for two",
        "registers come in units, and whole warps to each quarter",
        "shared memory, and a kilobyte of each program for the driver",
        "a little more of it",
        "all of it",
        "more than there is",
        "registers for none",
    ],
)
def test_the_scarcest_resource_says_how_many_programs_fit(
    num_warps: int, registers: int, shared_bytes: int, programs: int
) -> None:
    """A multiprocessor of Hopper has 65536 registers, 64 warps and 228 KiB."""
    seen = programs_per_multiprocessor(
        HOPPER, num_warps=num_warps, registers=registers, shared_bytes=shared_bytes
    )

    assert seen == programs


@pytest.mark.parametrize(("columns", "programs"), [(128, 4), (512, 1), (513, 0)])
def test_tensor_memory_limits_blackwell(columns: int, programs: int) -> None:
    """Its sums lie in 512 columns, which programs share."""
    seen = programs_per_multiprocessor(
        GPUS["sm_100"], num_warps=4, registers=32, shared_bytes=0, tensor_columns=columns
    )

    assert seen == programs


def test_occupancy_is_the_share_of_the_warp_slots() -> None:
    """Two programs of eight warps fill a quarter of 64."""
    assert occupancy(HOPPER, num_warps=8, programs=2) == 0.25
