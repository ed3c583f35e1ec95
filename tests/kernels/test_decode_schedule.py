"""How evenly decode attention loads a device, by a model of who runs where.

As many programs as the device holds begin at once, on one multiprocessor after the other; the
kernel gives those on the same one neighbouring runs. Memory is shared evenly, so who has most to
read is last.
"""

import itertools
import math
import random
from collections.abc import Iterator, Sequence

import pytest
import torch

from paceline_kernels.decode_attention import kernel
from paceline_kernels.decode_attention.plan import UNIT
from paceline_kernels.tuned import SHIPPED, Gpu, Shape, blocks_of
from paceline_testing.gpus import GPUS

H100 = Gpu("NVIDIA H100", (9, 0), 132)
MOST = 1.3
"""Times the mean, for who reads most."""
ROWS = (1, 2, 5, 16, 33, 64, 100, 256)


def contexts() -> dict[str, list[int]]:
    """Batches of equal rows, of rows of all lengths, and with one that is far longer."""
    chance = random.Random(7)
    cases = {}
    for rows in ROWS:
        for length in (1024, 4096, 32_768):
            cases[f"{rows} x {length}"] = [length] * rows
        cases[f"{rows} of all lengths"] = [chance.randint(100, 4000) for _ in range(rows)]
        cases[f"{rows} x 1024 and 32768"] = [1024] * rows + [32_768]
        heavy = [min(32_768, int(200 * chance.paretovariate(0.9))) for _ in range(rows)]
        cases[f"{rows} with a long tail"] = heavy
    return cases


CONTEXTS = contexts()


def batched(runs: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Cut into as many runs as share a multiprocessor."""
    return (runs[first : first + size] for first in range(0, len(runs), size))


def loads_of(lengths: list[int], num_kv_heads: int, device: str) -> list[int]:
    """Units that each multiprocessor reads."""
    lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    k_cache = torch.zeros(1, 16, num_kv_heads, 128, dtype=torch.bfloat16, device=device)
    with blocks_of.as_if(SHIPPED, H100):
        plan = kernel.plan_decode_attention(k_cache[0, 0], k_cache, lens)
    assert plan is not None
    num_units, num_programs = int(plan.ends[-1]), len(plan.runs)
    bounds = [run * num_units // num_programs for run in range(num_programs + 1)]
    runs = [end - begin for begin, end in itertools.pairwise(bounds)]
    num_multiprocessors = H100.multiprocessors
    each = blocks_of_h100()["programs"]
    places = runs * num_kv_heads
    places += [0] * (num_multiprocessors * each - len(places))
    return [sum(batch) for batch in batched(places, each)]


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4, 8])
@pytest.mark.parametrize("name", CONTEXTS)
def test_nobody_reads_much_more_than_the_others(name: str, num_kv_heads: int, device: str) -> None:
    """One long context is shared by all, whoever is beside it, and so are many short ones."""
    loads = loads_of(CONTEXTS[name], num_kv_heads, device)

    mean = sum(loads) / len(loads)
    assert sum(loads) == num_kv_heads * sum(-(-length // UNIT) for length in CONTEXTS[name])
    assert max(loads) <= max(MOST * mean, math.ceil(mean))  # a unit is whole


def test_the_model_counts_as_many_programs_as_fit() -> None:
    """All of them begin at once: they are no more than the compiler's report allows."""
    programs = blocks_of_h100()["programs"]

    assert programs * 4 <= GPUS["sm_90"].max_warps


def blocks_of_h100() -> dict[str, int]:
    shape: Shape = {"kv": "own", "bits": 16, "columns": 128}
    return dict(SHIPPED.row_for(H100, "decode_attention", shape).blocks)
