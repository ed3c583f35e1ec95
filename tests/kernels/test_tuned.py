"""The table of block sizes: who gets which row, and what is said of a bad one."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline_kernels.tuned import (
    NO_GPU,
    SPACES,
    BadTable,
    Gpu,
    Row,
    Table,
    line_of,
    lookup,
    read_table,
    shipped_table,
)

NORM = {"gpu": "any", "kernel": "rms_norm", "shape": {}, "blocks": {"num_warps": 1}}
H200 = Gpu("NVIDIA H200", (9, 0))
CPU = torch.device("cpu")


def a_row(
    warps: int, gpu: str = "any", name: str | None = None, shape: Mapping[str, int] | None = None
) -> Row:
    return Row(gpu, name, "rms_norm", shape or {}, {"num_warps": warps}, "a test")


def warps_on(gpu: Gpu, *rows: Row, columns: int = 512) -> int:
    return Table(rows).row_for(gpu, "rms_norm", {"columns": columns}).blocks["num_warps"]


def a_line(**changes: Any) -> str:
    return json.dumps({**NORM, "because": "a test", **changes})


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
    with pytest.raises(BadTable, match="no row of any gpu has blocks of rms_norm for"):
        warps_on(H200, a_row(1, "sm_80"))


def test_a_row_is_looked_up_once() -> None:
    """A launch of a class that was launched before costs one look into a dict."""
    reads = []

    def table() -> Table:
        reads.append(1)
        return Table((a_row(1),))

    blocks_of = lookup.Lookup(table, lambda _device: H200)

    assert [blocks_of("rms_norm", CPU, columns=512)["num_warps"] for _ in range(3)] == [1, 1, 1]
    assert len(reads) == 1


def test_another_table_stands_in_for_as_long_as_it_is_asked_to() -> None:
    """Who measures a candidate leaves no trace of it, not even where measuring fails."""
    blocks_of = lookup.Lookup(lambda: Table((a_row(1),)), lambda _device: NO_GPU)
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
    ("line", "sentence"),
    [
        ("{", "line 1: Expecting property name"),
        ("[]", r"line 1: a row must be an object, got \[\]"),
        (a_line(speed=3), "line 1: speed is no field of a row"),
        (json.dumps(NORM), "line 1: because is missing"),
        (a_line(because=""), "because must say what the row is from, got ''"),
        (a_line(gpu="H200"), "gpu must be any or a generation like sm_90, got 'H200'"),
        (a_line(name="NVIDIA H200"), "name needs a generation beside it, got 'NVIDIA H200'"),
        (a_line(kernel="rms"), "kernel must be one of prefill_attention, .*, got 'rms'"),
        (a_line(kernel=[1]), r"kernel must be one of .*, got \[1\]"),
        (a_line(shape=3), "shape must be an object, got 3"),
        (a_line(shape={"rows": 1}), "shape may have out, columns, got 'rows'"),
        (a_line(shape={"columns": 5}), "shape.columns must be one of 1, 2, .*, got 5"),
        (a_line(blocks={"num_warps": 3}), "blocks.num_warps must be one of 1, 2, .*, got 3"),
        (a_line(blocks={"num_warps": True}), "blocks.num_warps must be one of .*, got True"),
        (a_line(blocks={"num_warps": [4]}), r"blocks.num_warps must be one of .*, got \[4\]"),
        (a_line(blocks={}), "blocks of rms_norm must have num_warps"),
    ],
)
def test_a_bad_row_is_one_clear_sentence(line: str, sentence: str) -> None:
    """It names the line, the field and the rule."""
    with pytest.raises(BadTable, match=sentence):
        read_table([line])


def test_the_line_of_a_bad_row_is_told() -> None:
    with pytest.raises(BadTable, match=r"^line 3: "):
        read_table([a_line(), "", "{"])


def test_two_rows_of_the_same_are_refused() -> None:
    """The second would never serve, and whoever committed it would think that it does."""
    other = a_line(shape={"columns": 512})

    with pytest.raises(BadTable, match="line 3: it speaks of the same as line 1"):
        read_table([a_line(), other, a_line(blocks={"num_warps": 8})])


def test_a_row_survives_its_line() -> None:
    """What is measured is written as the table reads it."""
    rows = tuple(shipped_table().rows)

    assert read_table(map(line_of, rows)).rows == rows
    named = a_row(2, "sm_90", "NVIDIA H200", {"columns": 512})
    assert read_table([line_of(named)]).rows == (named,)


CALLS = [(kernel, shape) for kernel, space in SPACES.items() for shape in space.shapes()]


@given(
    major=st.integers(8, 14), minor=st.integers(0, 9), call=st.sampled_from(CALLS), name=st.text()
)
def test_every_call_has_blocks_on_every_gpu(
    major: int, minor: int, call: tuple[str, Mapping[str, int | str]], name: str
) -> None:
    """A GPU that nobody has seen is served by its generation's rows, or by the defaults."""
    kernel, shape = call

    row = shipped_table().row_for(Gpu(name, (major, minor)), kernel, shape)

    assert row.gpu == "any" or row.gpu.startswith(f"sm_{major}")


def test_a_shipped_table_that_is_bad_names_its_file(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.jsonl"
    path.write_text("{}\n")
    monkeypatch.setattr(lookup, "PATH", path)

    with pytest.raises(BadTable, match=rf"{path}: line 1: because is missing"):
        lookup.shipped_table.__wrapped__()
