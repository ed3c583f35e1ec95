import ast
import re
from pathlib import Path

import pytest
import torch

import paceline_kernels
from paceline_kernels import tuned
from paceline_kernels.dependent import dependent

FILES = sorted(Path(next(iter(paceline_kernels.__path__))).rglob("*.py"))
CPU = torch.device("cpu")


def test_nothing_is_added_to_a_launch_unless_it_is_asked_for() -> None:
    """Not even a constant: the kernel is the one that it is without the switch."""
    with tuned.blocks_of.as_if(tuned.SHIPPED, tuned.Gpu("", (9, 0))):
        assert dependent(CPU) == {}


@pytest.mark.parametrize(
    ("capability", "knows"),
    [((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 0), True), ((12, 0), True)],
    ids=str,
)
def test_gpus_from_9_0_on_launch_kernels_early(capability: tuple[int, int], *, knows: bool) -> None:
    """The instructions are not there before."""
    with (
        tuned.blocks_of.as_if(tuned.SHIPPED, tuned.Gpu("", capability)),
        dependent.turned(on=True),
    ):
        assert bool(dependent(CPU)) is knows
    assert not dependent.is_on


def test_every_kernel_begins_with_the_wait() -> None:
    """And every launcher of one says whether it is a dependent launch."""
    kernels, launches = set(), set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel"):
                kernels.add(node.name)
                assert ast.unparse(node.body[1]) == "wait_for_earlier(IS_DEPENDENT)", node.name
            if isinstance(node, ast.Call) and (name := _launched(node)):
                launches.add(name)
                said = [ast.unparse(each.value) for each in node.keywords if each.arg is None]
                assert any(each.startswith("dependent(") for each in said), name

    assert launches == kernels
    assert len(kernels) >= 28


def _launched(node: ast.Call) -> str:
    """Name the kernel of `_a_kernel[grid](...)` or `Call(_a_kernel, grid, ...)`; empty if none."""
    if isinstance(node.func, ast.Subscript):
        name = ast.unparse(node.func.value)
    elif ast.unparse(node.func) == "Call" and node.args:
        name = ast.unparse(node.args[0])
    else:
        return ""
    return name if re.fullmatch(r"_\w+_kernel", name) else ""
