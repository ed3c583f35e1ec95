"""A call that looks like an earlier one is launched as that was: not checked, not bound again."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline_kernels import prepared, tuned
from paceline_kernels.dependent import dependent
from paceline_kernels.norm.kernel import add_rms_norm
from paceline_kernels.norm.reference import add_rms_norm as reference_add_rms_norm
from paceline_kernels.prepared import Call, Calls, looks


@dataclass
class Kernel:
    """A kernel of two pointers, a number and two constants, as Triton's are called."""

    bound: list[Any] = field(default_factory=list)
    """Launches for which Triton looked at each argument."""
    launched: list[Any] = field(default_factory=list)
    """Launches that went to a compiled variant directly."""
    compiles: bool = True

    params = (
        SimpleNamespace(name="x_ptr", is_constexpr=False, default=None),
        SimpleNamespace(name="out_ptr", is_constexpr=False, default=None),
        SimpleNamespace(name="size", is_constexpr=False, default=None),
        SimpleNamespace(name="BLOCK", is_constexpr=True, default=None),
        SimpleNamespace(name="IS_LAST", is_constexpr=True, default=False),
    )

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*args: Any, **constants: Any) -> Any:
            self.bound.append((grid, args, constants))
            return Variant(self) if self.compiles else None

        return launch


@dataclass
class Variant:
    """A compiled kernel."""

    kernel: Kernel
    packed_metadata: tuple[int, ...] = ()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args: self.kernel.launched.append((grid, args))


def test_the_second_call_goes_to_the_variant_that_the_first_found() -> None:
    """With other memory, and the constants in the order in which the kernel declares them."""
    kernel = Kernel()
    call = Call(kernel, (7,), BLOCK=64, num_warps=4)
    first, second = torch.zeros(32), torch.zeros(32)

    call((first, None), 5)
    call((second, None), 5)

    assert kernel.bound == [((7, 1, 1), (first, None, 5), {"BLOCK": 64, "num_warps": 4})]
    assert kernel.launched == [((7, 1, 1), (second, None, 5, 64, False))]


def test_memory_of_another_alignment_has_a_variant_of_its_own() -> None:
    """Triton reads 16 bytes at once where it may: from elsewhere that is a fault."""
    kernel = Kernel()
    call = Call(kernel, (1,), BLOCK=64)
    memory = torch.zeros(64)

    for start in (0, 1, 0, 1):
        call((memory[start : start + 32], None), 5)

    assert len(kernel.bound) == len(kernel.launched) == 2


def test_what_was_not_compiled_is_not_remembered() -> None:
    """An interpreted kernel, or one that is recorded, must see every call."""
    kernel = Kernel(compiles=False)
    call = Call(kernel, (1,), BLOCK=64)

    for _ in range(3):
        call((torch.zeros(32), None), 5)

    assert len(kernel.bound) == 3
    assert not kernel.launched


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(4, 9),
        torch.zeros(4, 8, dtype=torch.float16),
        torch.zeros(8, 4).T,
        torch.zeros(4, 8, device="meta"),
        None,
    ],
    ids=["shape", "dtype", "strides", "device", "nothing"],
)
def test_tensors_that_a_check_tells_apart_look_different(other: Tensor | None) -> None:
    """Shape, type, strides and device count, and so does a missing tensor."""
    assert looks(torch.zeros(4, 8)) == looks(torch.ones(4, 8))
    assert looks(other) != looks(torch.zeros(4, 8))


def test_an_exchanged_table_and_dependent_launches_make_other_calls() -> None:
    """A call prepared with the old blocks must not be used with the new ones."""
    calls = Calls()
    before = calls.key(1)

    with tuned.blocks_of.as_if(tuned.SHIPPED, tuned.NO_GPU):
        assert calls.key(1) != before
    assert calls.key(1) != before
    with dependent.turned(on=not dependent.is_on):
        assert calls.key(1) not in {before, calls.key(2)}


def test_no_more_calls_are_kept_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of tokens differs from step to step."""
    monkeypatch.setattr(prepared, "MOST_CALLS", 4)
    calls, call = Calls(), Call(Kernel(), (1,), BLOCK=64)

    for number in range(10):
        calls.keep(calls.key(number), call)

    assert calls.get(calls.key(9)) is call
    assert sum(calls.get(calls.key(number)) is not None for number in range(10)) <= 4


def test_a_launcher_computes_the_same_again_from_memory_that_begins_elsewhere(device: str) -> None:
    """As slices of a step's tensors do."""
    memory = torch.randn(5 * 48 + 1, device=device)
    residual, weight = torch.randn(5, 48, device=device), torch.randn(48, device=device)

    for start in (0, 1, 0, 1):
        x = memory[start : start + 5 * 48].view(5, 48)
        seen = add_rms_norm(x, residual, weight, 1e-6)
        wanted = reference_add_rms_norm(x, residual, weight, 1e-6)
        torch.testing.assert_close(seen, wanted)


def test_a_wrong_tensor_is_refused_after_right_ones(device: str) -> None:
    """A tensor of another shape is checked, although the kernel was launched before."""
    x, weight = torch.randn(5, 48, device=device), torch.randn(48, device=device)
    add_rms_norm(x, x, weight, 1e-6)

    for _ in range(2):
        with pytest.raises(ValueError, match=r"residual must be contiguous \[5, 48\]"):
            add_rms_norm(x, x[:4], weight, 1e-6)
