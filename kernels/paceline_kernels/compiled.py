"""Tells which variants of kernels Triton compiles, or takes from its cache of files."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

Told = Callable[[str], None]
"""Takes the name of a kernel that has a new variant."""


class Compilations:
    """Counts variants by kernel, while it is asked to."""

    def __init__(self) -> None:
        self._variants: Counter[str] = Counter()

    @property
    def variants(self) -> dict[str, int]:
        """Return the number of each kernel's, by its name."""
        return dict(self._variants)

    @property
    def num_variants(self) -> int:
        """Count all of them."""
        return self._variants.total()

    @property
    def num_kernels(self) -> int:
        """Count the kernels that have variants."""
        return len(self._variants)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what this process compiles from here on, until the end of the block."""
        before = tell_of_variants(lambda kernel: self._variants.update([kernel]))
        try:
            yield
        finally:
            before()


def tell_of_variants(told: Told) -> Callable[[], None]:
    """Call `told` after each variant that this process compiles; call the result to stop.

    Where Triton is not installed, nothing is compiled.
    """
    if find_spec("triton") is None:
        return lambda: None
    runtime: Any = import_module("triton").knobs.runtime
    before = runtime.jit_post_compile_hook

    def hook(*, fn: Any, **compiled: Any) -> Any:
        told(fn.name.rpartition(".")[2])
        return None if before is None else before(fn=fn, **compiled)

    runtime.jit_post_compile_hook = hook

    def ended() -> None:
        runtime.jit_post_compile_hook = before

    return ended
