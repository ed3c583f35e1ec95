"""What a kernel's compiled loops do while they wait for memory, read from Triton's GPU code.

The compiler's pipeliner turns a load that a matrix product reads into a copy into one of several
buffers, begun some rounds before the round that uses it. What it could not do so shows in its
output, TTGIR: a single buffer, a wait for all copies (`num = 0`), or a load that stayed a load.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_COPY = "ttg.async_copy_global_to_local"
_PRODUCTS = ("tt.dot ", "ttng.warp_group_dot ", "ttng.tc_gen5_mma ")
_COPIED_INTO = re.compile(rf"{re.escape(_COPY)} .*-> <([0-9x]+)x\w+,")
_BUFFERS = re.compile(
    r"ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x([0-9x]+)x[a-z]\w+,.*mutable"
)
_WAIT = re.compile(r"ttg\.async_wait .*\{num = (\d+)")
_PENDING = re.compile(r"ttng\.warp_group_dot_wait .*\{pendings = (\d+)")
_LOADED = re.compile(r"tt\.load .*: tensor<([0-9x]+)x!tt\.ptr")


@dataclass(frozen=True, slots=True)
class Loop:
    """One innermost loop that has a matrix product."""

    products: int
    buffers: int
    """Of the tile that has fewest; 0 where no tile is copied behind the arithmetic."""
    waits: tuple[int, ...]
    """Copies that may still be on their way where the loop waits for one."""
    tile_loads: int
    """Loads of two-dimensional tiles that stayed loads: nothing overlaps them."""


def loops_of(ttgir: str) -> tuple[Loop, ...]:
    """Return the loops that multiply, in their order."""
    buffers = {
        tile: min(int(count) for count, other in _BUFFERS.findall(ttgir) if other == tile)
        for _, tile in _BUFFERS.findall(ttgir)
    }
    return tuple(
        _loop(body, buffers)
        for body in _innermost_loops(ttgir)
        if any(product in line for line in body for product in _PRODUCTS)
    )


def _loop(body: list[str], buffers: dict[str, int]) -> Loop:
    text = "\n".join(body)
    loaded = _LOADED.findall(text)
    return Loop(
        products=sum(any(product in line for product in _PRODUCTS) for line in body),
        buffers=min((buffers.get(tile, 1) for tile in _COPIED_INTO.findall(text)), default=0),
        waits=tuple(map(int, _WAIT.findall(text))),
        tile_loads=sum("x" in tile for tile in loaded),
    )


def _innermost_loops(ttgir: str) -> Iterator[list[str]]:
    """Yield the lines of each loop that has none within it."""
    open_regions: list[list[str] | None] = []
    for line in ttgir.splitlines():
        opened = line.count("{") - line.count("}")
        if opened < 0 and open_regions:
            body = open_regions.pop()
            if body is not None:
                yield body
                open_regions = [None for _ in open_regions]  # those around it are not innermost
        for region in open_regions:
            if region is not None:
                region.append(line)
        if opened > 0:
            is_loop = "scf.for" in line or "scf.while" in line
            open_regions.append([] if is_loop else None)
