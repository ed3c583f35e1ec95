"""The order of torch's sums through peer memory, read in its own library's machine code for 9.0.

Threads of a block must meet between what they write or read and the signal that a few of them give
the other ranks: no run without two GPUs shows it.
"""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch
import triton

_CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
_LIBRARY = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
_KERNELS = {
    "one shot": r"\S*\d+one_shot_all_reduce_kernelI\S*BFloat16ELi16ELi2EE\S*",
    "two shots": r"\S*\d+two_shot_all_reduce_kernelI\S*BFloat16ELi16ELi4ELb0E\S*",
}
_INSTRUCTIONS = {
    "meets": r"BAR\.SYNC",
    "signals": r"ATOM\S*\.CAS\S*\.SYS",
    "orders": r"MEMBAR\S*\.SYS",
    "reads": r"LDG\.E\.128",
    "writes": r"STG\.E\.128",
}

pytestmark = pytest.mark.skipif(
    not (_LIBRARY.exists() and _CUOBJDUMP.exists()), reason="a torch without CUDA"
)


def _dumped(*arguments: str) -> str:
    command = [str(_CUOBJDUMP), "-arch", "sm_90", *arguments, str(_LIBRARY)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@cache
def _symbols() -> str:
    return _dumped("-symbols")


@cache
def _order(kernel: str) -> str:
    """Return what a kernel does, in words; the compiler's order is the program's but for loops."""
    found = re.search(rf"(?<!multimem_){_KERNELS[kernel]}", _symbols())
    if found is None:
        pytest.skip("this torch has no such kernel for 9.0")
    code = _dumped("-sass", "-fun", found[0])
    body = code[code.index(f"Function : {found[0]}") :]
    body = body[: body.find(".....")]
    either = "|".join(f"(?P<{name}>{pattern})" for name, pattern in _INSTRUCTIONS.items())
    words = [each.lastgroup or "" for each in re.finditer(either, body)]
    return " ".join(
        word for word, before in zip(words, ["", *words], strict=False) if word != before
    )


def test_one_shot_waits_before_it_reads_and_after_it_has_read() -> None:
    """Signals, then all threads of the block meet, read and meet again; only then it signals."""
    assert _order("one shot").endswith("signals meets reads writes meets orders signals")


def test_two_shots_wait_between_their_halves_as_well() -> None:
    """What a rank has added up is written before it tells the others of it."""
    assert _order("two shots").endswith(
        "signals meets reads writes meets orders signals meets reads writes meets orders signals"
    )


def test_the_op_that_copies_by_itself_does_not_wait_for_its_copy() -> None:
    """The reason that it is not used: threads do not meet between the copy and the signal.

    Where this fails, a torch has come in which they do: a product that cannot write where peers
    read may then leave its copy to `one_shot_all_reduce_copy_out`.
    """
    assert _order("one shot").startswith("reads writes orders signals")
