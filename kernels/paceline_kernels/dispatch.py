"""The kernel on a GPU, the reference elsewhere: chosen per call by the first tensor's device."""

import functools
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Concatenate, ParamSpec, TypeVar, cast

from torch import Tensor

Rest = ParamSpec("Rest")
Result = TypeVar("Result")
Op = Callable[Concatenate[Tensor, Rest], Result]


def by_device(reference: Op[Rest, Result]) -> Op[Rest, Result]:
    """Pair a reference with the launcher of the same name in the `kernel` module beside it."""

    @functools.wraps(reference)
    def op(first: Tensor, /, *args: Rest.args, **kwargs: Rest.kwargs) -> Result:
        return chosen(reference, first)(first, *args, **kwargs)

    return op


def chosen(reference: Op[Rest, Result], first: Tensor) -> Op[Rest, Result]:
    """Return what computes an op on the device of its first tensor."""
    return launcher(reference) if first.is_cuda else reference


@functools.cache
def launcher(reference: Op[Rest, Result]) -> Op[Rest, Result]:
    """Find the reference's kernel, or the reference again where Triton is not installed.

    Imported at its first use: a CPU neither needs Triton nor pays for its import.
    """
    if find_spec("triton") is None:
        return reference
    package = reference.__module__.rpartition(".")[0]
    return cast("Op[Rest, Result]", getattr(import_module(f"{package}.kernel"), reference.__name__))
