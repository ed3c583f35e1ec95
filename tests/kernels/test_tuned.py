"""The table of block sizes: who gets which row, and what each row may say."""

import re
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline_kernels.tuned import NO_GPU, SHIPPED, SPACES, Gpu, NoBlocksError, Row, Table, lookup

H200 = Gpu("NVIDIA H200", (9, 0))
CPU = torch.device("cpu")


def a_row(
    warps: int, gpu: str = "any", name: str | None = None, shape: Mapping[str, int] | None = None
) -> Row:
    return Row(
        kernel="rms_norm",
        gpu=gpu,
        name=name,
        shape=shape or {},
        blocks={"num_warps": warps},
        because="a test",
    )


def warps_on(gpu: Gpu, *rows: Row, columns: int = 512) -> int:
    return Table(rows).row_for(gpu, "rms_norm", {"columns": columns}).blocks["num_warps"]


@pytest.mark.parametrize(
    ("gpu", "warps"),
    [
        (H200, 8),
        (Gpu("NVIDIA H100", (9, 0)), 4),
        (Gpu("NVIDIA A100", (8, 0)), 1),
        (Gpu("NVIDIA L40S", (8, 9)), 2),
        (Gpu("NVIDIA A40", (8, 6)), 2),
        (Gpu("NVIDIA GB300", (10, 3)), 1),
        (Gpu("of a later generation", (13, 0)), 1),
        (NO_GPU, 1),
    ],
    ids=lambda value: getattr(value, "name", None) or "",
)
def test_the_nearest_row_serves(gpu: Gpu, warps: int) -> None:
    """The device's own, then its generation's or an older one of it, then the defaults.

    What holds for 8.6 holds for 8.9 and not for 8.0, and nothing crosses to another generation.
    """
    rows = (
        a_row(1),
        a_row(2, "sm_86"),
        a_row(4, "sm_90"),
        a_row(8, "sm_90", "NVIDIA H200"),
        a_row(16, "sm_100", "NVIDIA B200"),
    )

    assert warps_on(gpu, *rows) == warps


def test_a_row_for_one_class_leaves_the_others_to_the_defaults() -> None:
    """A device is measured one class at a time."""
    rows = (a_row(1), a_row(8, "sm_90", "NVIDIA H200", {"columns": 4096}))

    assert warps_on(H200, *rows, columns=4096) == 8
    assert warps_on(H200, *rows, columns=512) == 1


def test_the_first_row_that_fits_serves() -> None:
    """So a special class stands before a wide one."""
    assert warps_on(H200, a_row(2, shape={"columns": 512}), a_row(1)) == 2
    assert warps_on(H200, a_row(1), a_row(2, shape={"columns": 512})) == 1


def test_a_call_that_no_row_serves_is_told_so() -> None:
    with pytest.raises(NoBlocksError, match="no row of any gpu has blocks of rms_norm for"):
        warps_on(H200, a_row(1, "sm_80"))


def test_a_row_is_looked_up_once() -> None:
    """A launch of a class that was launched before costs one look into a dict."""
    asked = []

    def gpu_of(_device: torch.device) -> Gpu:
        asked.append(1)
        return H200

    blocks_of = lookup.Lookup(Table((a_row(1),)), gpu_of)

    assert [blocks_of("rms_norm", CPU, columns=512)["num_warps"] for _ in range(3)] == [1, 1, 1]
    assert len(asked) == 1


def test_another_table_stands_in_for_as_long_as_it_is_asked_to() -> None:
    """Who measures a candidate leaves no trace of it, not even where measuring fails."""
    blocks_of = lookup.Lookup(Table((a_row(1),)), lambda _device: NO_GPU)
    candidate = Table((a_row(8, "sm_90"), a_row(2)))

    def ask() -> int:
        return blocks_of("rms_norm", CPU, columns=512)["num_warps"]

    seen = [ask()]
    with pytest.raises(ZeroDivisionError), blocks_of.as_if(candidate, H200):  # noqa: PT012 - what it does before it fails is the point
        seen.append(ask())
        raise ZeroDivisionError
    seen.append(ask())

    assert seen == [1, 8, 1]


@pytest.mark.parametrize(
    "row", SHIPPED.rows, ids=lambda row: f"{row.gpu}, {row.kernel}, {row.shape}"
)
def test_a_row_says_what_its_kernel_understands(row: Row) -> None:
    """A class and sizes that its space knows, every size, and where they are from."""
    space = SPACES[row.kernel]

    assert row.gpu == "any" or re.fullmatch(r"sm_\d{2,3}", row.gpu)
    assert row.name is None or row.gpu != "any"
    assert all(value in space.classes[name] for name, value in row.shape.items())
    assert row.blocks.keys() == space.blocks.keys()
    assert all(value in space.blocks[name] for name, value in row.blocks.items())
    assert row.because


def test_no_two_rows_speak_of_the_same() -> None:
    """The second would never serve, and whoever committed it would think that it does."""
    said = [(row.gpu, row.name, row.kernel, sorted(row.shape.items())) for row in SHIPPED.rows]

    assert all(one not in said[:place] for place, one in enumerate(said))


CALLS = [(kernel, shape) for kernel, space in SPACES.items() for shape in space.shapes()]


@given(
    major=st.integers(8, 14), minor=st.integers(0, 9), call=st.sampled_from(CALLS), name=st.text()
)
def test_every_call_has_blocks_on_every_gpu(
    major: int, minor: int, call: tuple[str, Mapping[str, int | str]], name: str
) -> None:
    """A GPU that nobody has seen is served by its generation's rows, or by the defaults."""
    kernel, shape = call

    row = SHIPPED.row_for(Gpu(name, (major, minor)), kernel, shape)

    assert row.gpu == "any" or row.gpu.startswith(f"sm_{major}")
