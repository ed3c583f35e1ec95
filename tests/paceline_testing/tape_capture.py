"""A CUDA graph's double on a CPU: captures ops on tensors, and replays them where these lie.

No Python runs again at a replay. What a captured op gives is written into the tensor that it gave
when it was captured, and is spoilt before, so that nothing of an earlier run can be read. It may
read what was there before the capture, and what captured ops have written: nothing else.
"""

import functools
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from paceline_engine.attention import kernel_attention
from paceline_engine.attention.prefill import prompts
from paceline_engine.model import row_stages
from paceline_engine.model.layers import lora_linear
from paceline_engine.runner import decode_graphs, gpu_tables

_OPS = (
    (gpu_tables, "lay_out_step"),
    (gpu_tables, "lay_out_draws"),
    (gpu_tables, "keep_tokens"),
    (decode_graphs, "sample_tokens"),
    (lora_linear, "add_adapters"),
    (kernel_attention, "rope_and_store_kv"),
    (kernel_attention, "paged_decode_attention"),
    (prompts, "paged_prefill_attention"),
    (row_stages, "row_product"),
    (row_stages, "add_row_product"),
)
"""Ops of kernels, each captured as one: most references look at numbers on the host."""
_WAITS = {"aten._local_scalar_dense.default", "aten.nonzero.default", "aten.masked_select.default"}
"""The host would have to see a number of the device: no graph can hold that."""


@dataclass(frozen=True, slots=True)
class _Op:
    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: list[Tensor]
    """What it gave, in memory of its own."""


class TapeCapture:
    """Implements the `GraphCapture` port."""

    def __init__(self) -> None:
        self.num_captured = 0

    def capture(self, compute: Callable[[], None]) -> Callable[[], None]:
        """See `GraphCapture`."""
        compute()
        gc.collect()
        tensors = (each for each in gc.get_objects() if issubclass(type(each), Tensor))
        there = {_memory_of(each) for each in tensors if _has_memory(each)}
        tape = _Tape(there)
        with _whole_kernels(tape), tape:
            compute()
        self.num_captured += 1
        return tape.replay


class _Tape(TorchDispatchMode):
    def __init__(self, there: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self._there = there
        self._ops: list[_Op] = []
        self._own: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        assert str(func) not in _WAITS, f"{func} waits for the device"
        return self.run(func, args, kwargs or {})

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        read = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        for tensor in read:
            is_known = {_memory_of(tensor)} & (self._there | self._own)
            assert is_known, f"{func} reads memory that was made for this capture alone"
        given = func(*args, **kwargs)
        shared = {_memory_of(tensor) for tensor in read}
        fresh = [
            each
            for each in tree_leaves(given)
            if isinstance(each, Tensor) and _memory_of(each) not in shared
        ]
        self._own |= {_memory_of(each) for each in fresh}
        self._ops.append(_Op(func, args, kwargs, fresh))
        return given

    @torch.inference_mode()
    def replay(self) -> None:
        for op in self._ops:
            for tensor in op.given:
                _spoil(tensor)
        for op in self._ops:
            given = op.run(*op.args, **op.kwargs)
            anew = [each for each in tree_leaves(given) if isinstance(each, Tensor)]
            if op.given:
                for tensor, value in zip(op.given, anew, strict=True):
                    tensor.copy_(value)


def _has_memory(tensor: Tensor) -> bool:
    """Tell whether a tensor is more than sizes: other tests may have left some that are not."""
    if tensor.layout is not torch.strided or isinstance(tensor, FakeTensor):
        return False
    try:
        _memory_of(tensor)
    except RuntimeError:  # it wraps another: a test of the asynchronous device left it
        return False
    return True


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _spoil(tensor: Tensor) -> None:
    tensor.fill_(torch.nan if tensor.is_floating_point() else 77)


class _whole_kernels:  # noqa: N801 - a context manager
    """Capture each kernel as one op, whatever its reference does."""

    def __init__(self, tape: _Tape) -> None:
        self._tape = tape
        self._patches = [
            mock.patch.object(module, name, self._captured(getattr(module, name)))
            for module, name in _OPS
        ]

    def __enter__(self) -> None:
        for patch in self._patches:
            patch.start()

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()

    def _captured(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(kernel)
        def op(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                return self._tape.run(kernel, args, kwargs)

        return op
