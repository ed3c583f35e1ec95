"""Launches whose every access is checked."""

import itertools
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime import interpreter

from paceline_testing.sanitizer.builder import WatchingBuilder
from paceline_testing.sanitizer.memory import Given, KernelFaultError, Storage, elements_of

_ATEN = torch.ops.aten
_FRESH = {
    _ATEN.empty,
    _ATEN.empty_like,
    _ATEN.empty_strided,
    _ATEN.new_empty,
    _ATEN.new_empty_strided,
}


class Sanitizer(TorchDispatchMode):
    """What is known of the memory of all launches within one `sanitized()`."""

    def __init__(self, *, corners: bool, whole: Collection[str]) -> None:
        """Know of nothing."""
        super().__init__()  # type: ignore[no-untyped-call]  # it is torch's
        self._corners = corners
        self._whole = whole
        self._storages: dict[int, Storage] = {}
        self.num_launches = 0

    def require_written(self, *results: Tensor) -> None:
        """Raise KernelFaultError where a result holds memory that nothing has written."""
        for result in results:
            written = self._storage_of(result).written
            if written is not None and not elements_of(written, result).all():
                raise KernelFaultError(
                    "unwritten", f"a result {list(result.shape)} is not all written"
                )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Note what torch allocates and writes."""
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _FRESH and not self._corners:
            self._storage_of(result).forget()
            return result
        given = dict(zip((each.name for each in func._schema.arguments), args, strict=False))
        given.update(kwargs or {})
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._note_written(given.get(argument.name))
        return result

    def launch(self, executor: Any, run: Any, *args: Any, **kwargs: Any) -> None:
        """Run the programs of a launch: all, or those at the corners of the grid."""
        builder: Any = interpreter.interpreter_builder
        builder.begin(executor.fn.__name__)
        for storage in self._storages.values():
            storage.forget_launch()
        self.num_launches += 1
        try:
            if not self._corners or executor.fn.__name__ in self._whole:
                run(executor, *args, **kwargs)
                return
            grid = tuple(executor.grid)
            for corner in itertools.product(*({0, size - 1} for size in grid)):
                with _only(executor, grid, corner):
                    run(executor, *args, **kwargs)
        except interpreter.InterpreterError as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, KernelFaultError):
                cause = cause.__cause__
            if cause is None:
                raise
            raise cause from None

    def note_given(self, names: list[str], args: list[Any], kwargs: dict[str, Any]) -> None:
        """Learn of the tensors of the launch that begins."""
        named = [*zip(names, args, strict=False), *kwargs.items()]
        builder: Any = interpreter.interpreter_builder
        for name, each in named:
            if isinstance(each, Tensor):
                storage = self._storage_of(each)
                sizes, strides = tuple(each.shape), each.stride()
                base = each.data_ptr()
                builder.given.append(
                    Given(name, base, each.element_size(), sizes, strides, storage)
                )

    def _storage_of(self, tensor: Tensor) -> Storage:
        base = tensor.untyped_storage().data_ptr()
        if base not in self._storages:
            self._storages[base] = Storage(tensor)
        return self._storages[base]

    def _note_written(self, tensor: Any) -> None:
        if isinstance(tensor, Tensor) and tensor.numel():
            written = self._storage_of(tensor).written
            if written is not None:
                elements_of(written, tensor)[...] = True


@contextmanager
def _only(executor: Any, grid: tuple[int, ...], corner: tuple[int, ...]) -> Iterator[None]:
    """Let one program run, which sees the whole grid."""
    builder = interpreter.interpreter_builder
    dims, place = ((*each, *(rest,) * (3 - len(each))) for each, rest in ((grid, 1), (corner, 0)))
    with (
        mock.patch.object(executor, "grid", (1,)),
        mock.patch.object(builder, "set_grid_dim", partial(_instead, builder.set_grid_dim, dims)),
        mock.patch.object(builder, "set_grid_idx", partial(_instead, builder.set_grid_idx, place)),
    ):
        yield


def _instead(method: Callable[..., None], wanted: tuple[int, ...], *_: int) -> None:
    method(*wanted)


@contextmanager
def sanitized(*, corners: bool = False, whole: Collection[str] = ()) -> Iterator[Sanitizer]:
    """Check every launch in this block.

    `corners`: run only the programs at the corners of a grid, for tensors that are too large to be
    touched everywhere; whether memory was written is not known then. Kernels that others take
    addresses from are named in `whole`.
    """
    sanitizer = Sanitizer(corners=corners, whole=whole)
    builder = interpreter.interpreter_builder
    executor = interpreter.GridExecutor
    run, put_on_host = executor.__call__, executor._init_args_hst

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        with _disable_current_modes():  # what the interpreter itself asks of torch
            sanitizer.launch(self, run, *args, **kwargs)

    def note(self: Any, args: Any, kwargs: Any) -> Any:
        host_args, host_kwargs = put_on_host(self, args, kwargs)
        sanitizer.note_given(self.arg_names, host_args, host_kwargs)
        return host_args, host_kwargs

    plain = type(builder)
    builder.__class__ = WatchingBuilder
    try:
        with (
            mock.patch.object(executor, "__call__", launch),
            mock.patch.object(executor, "_init_args_hst", note),
            # Its tensors are on the host already: to copy a sparse one would take all its memory.
            mock.patch.object(executor, "_restore_args_dev"),
            sanitizer,
        ):
            yield sanitizer
    finally:
        builder.__class__ = plain
