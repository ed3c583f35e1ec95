"""The table of blocks: what a row says, and which row serves a GPU and a class of calls.

A row speaks of a device by its name, of a generation (`sm_90`), or of `any`. A device asks for
rows under its own name first, then under generations of its major version from its own down, then
for those of any; within each, the first row whose shape the call has serves.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from paceline_kernels.tuned.spaces import Blocks, Shape

ANY = "any"


class NoBlocksError(LookupError):
    """The table has no row for a class of calls."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """The properties of a GPU by which a row is found."""

    name: str
    capability: tuple[int, int]
    """Major and minor."""
    multiprocessors: int = 4


NO_GPU = Gpu("", (0, 0))
"""A CPU, in Triton's interpreter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Blocks of one kernel, for the calls of a class, on some GPUs."""

    kernel: str
    gpu: str = ANY
    """`any`, or a generation: `sm_90`."""
    name: str | None = None
    """The one device that the row is for; the row then says its generation, too."""
    shape: Shape
    """What a call must have; what is not named may be any."""
    blocks: Blocks
    because: str
    """The measurement or the arithmetic that the row is from."""

    def serves(self, kernel: str, shape: Shape) -> bool:
        """Tell whether a call is of this row's class."""
        return kernel == self.kernel and all(shape[k] == value for k, value in self.shape.items())


@dataclass(frozen=True, slots=True)
class Table:
    """All rows, in the order in which they are asked."""

    rows: tuple[Row, ...]

    def row_for(self, gpu: Gpu, kernel: str, shape: Shape) -> Row:
        """Find the row that serves. Raises NoBlocksError where there is none."""
        for name, generation in _places(gpu):
            for row in self.rows:
                if (row.name, row.gpu) == (name, generation) and row.serves(kernel, shape):
                    return row
        raise NoBlocksError(f"no row of any gpu has blocks of {kernel} for {dict(shape)}")


def _places(gpu: Gpu) -> Iterator[tuple[str | None, str]]:
    major, minor = gpu.capability
    yield gpu.name, f"sm_{major}{minor}"
    for lower in range(minor, -1, -1):
        yield None, f"sm_{major}{lower}"
    yield None, ANY
