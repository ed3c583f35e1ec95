"""What a step gives a device to do, in order: kernels, products, other ops, copies and waits.

Nothing runs: launches are counted with the bytes and FLOPs that follow from their shapes. What a
kernel of ours moves only its own rules say (`step_work.kernels`); here its arguments are kept.
"""

import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from unittest import mock

from torch import Tensor
from torch.utils._pytree import tree_leaves


class MixedDevicesError(AssertionError):
    """One op, or one kernel, is given tensors of the host and of the device."""


Kind = Literal["kernel", "product", "op", "copy", "sum of ranks", "tokens to ranks"]


@dataclass(frozen=True, slots=True)
class Launch:
    """One thing that the device does."""

    kind: Kind
    name: str
    read: int = 0
    """Bytes, of kernels of ours not counted."""
    written: int = 0
    flops: int = 0
    grid: tuple[int, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Of a kernel of ours, by name, with its warps and stages; of a product its sizes."""
    in_graph: bool = False
    """Replayed with others by one call of the host."""
    tensors: tuple[Tensor, ...] = field(default=(), repr=False, compare=False)
    """What an op or a product reads and writes on the device; a kernel has its arguments."""


class DeviceRecord:
    """Everything that was asked of the device, in order."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.waits: list[str] = []
        """Where the host waited, as it said it would."""
        self._captured: list[Launch] | None = None

    def clear(self) -> None:
        """Forget everything so far."""
        self.launches.clear()
        self.waits.clear()

    def add(self, launch: Launch) -> None:
        """Note a launch, in the graph that is being captured if there is one."""
        (self.launches if self._captured is None else self._captured).append(launch)

    def waited(self, what: str) -> None:
        """Note a wait. Raises RuntimeError in a capture, as CUDA does."""
        if self._captured is not None:
            raise RuntimeError(f"{what}: operation not permitted when stream is capturing")
        self.waits.append(what)

    def begin_capture(self) -> None:
        """Keep what follows for a graph."""
        if self._captured is not None:
            raise RuntimeError("a stream is captured already")
        self._captured = []

    def end_capture(self) -> tuple[Launch, ...]:
        """Return what was captured."""
        captured, self._captured = self._captured, None
        return tuple(captured or ())


# They give memory, or another look at it: nothing runs on the device.
_NO_LAUNCH = {
    *("aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided"),
    *("aten::new_empty_strided", "aten::lift_fresh", "aten::detach", "aten::alias"),
    *("aten::record_stream", "aten::set_", "aten::_reshape_alias", "aten::unsafe_split"),
}
_PRODUCTS = {"aten::mm", "aten::addmm", "aten::linear", "aten::matmul", "aten::bmm"}
_PRODUCTS |= {"aten::_scaled_mm", "aten::_int_mm"}
_GATHERS = {"aten::index", "aten::index_select", "aten::embedding", "aten::gather"}
_OVERWRITES = {"aten::copy_", "aten::zero_", "aten::fill_", "aten::normal_"}
_ATTENTIONS = {
    "aten::scaled_dot_product_attention",
    "aten::_scaled_dot_product_flash_attention",
}
"""Of the last tokens of a context, each of which sees what lies before it."""
_MEETINGS: dict[str, Kind] = {
    "c10d::allreduce_": "sum of ranks",
    "c10d::allreduce": "sum of ranks",
    "c10d::broadcast_": "tokens to ranks",
}


def noted(func: Any, args: Any, kwargs: Any, result: Any) -> Launch | None:
    """Say what an op of torch's makes the device do; None where it is nothing."""
    name = func._schema.name
    if name in _NO_LAUNCH or func.is_view:
        return None
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    made = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
    written = sum(map(bytes_of, made))
    if not written:
        return None
    into = {id(each) for each in made}
    tensors = tuple(each for each in (*given, *made) if each.is_cuda)
    read = sum(bytes_of(each) for each in given if id(each) not in into)
    if name in _GATHERS:
        rows = args[1] if isinstance(args[1], list | tuple) else [args[1]]
        read = written + sum(bytes_of(each) for each in rows if isinstance(each, Tensor))
    if name == "aten::index_copy_":
        _, _, rows, source = args
        written = bytes_of(source)
        return Launch("op", str(func), written + bytes_of(rows), written, tensors=tensors)
    is_overwritten = name in _OVERWRITES or "out" in kwargs
    if func._schema.is_mutable and not is_overwritten:
        read += written
    if name in _ATTENTIONS:
        flops = _attention_flops(*args[:2])
        return Launch("op", str(func), read, written, flops, tensors=tensors)
    kind: Kind = _MEETINGS.get(name, "product" if name in _PRODUCTS else "op")
    if name in {"aten::copy_", "aten::_to_copy", "aten::clone"}:
        kind = "copy"
    if kind != "product":
        return Launch(kind, str(func), read, written, tensors=tensors)
    inputs = (args[1] if name == "aten::addmm" else args[0]).shape[-1]
    sizes = {
        "rows": made[0].numel() // made[0].shape[-1],
        "inputs": inputs,
        "outputs": made[0].shape[-1],
    }
    flops = 2 * made[0].numel() * inputs
    return Launch(kind, str(func), read, written, flops, arguments=sizes, tensors=tensors)


def _attention_flops(q: Tensor, k: Tensor) -> int:
    """Count two products for each query head, each of its tokens, and each token that it sees."""
    (_, heads, tokens, size), context = q.shape, k.shape[2]
    pairs = math.comb(context + 1, 2) - math.comb(context - tokens + 1, 2)
    return 4 * heads * size * pairs


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes that a tensor covers; what is expanded is read once."""
    numbers = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numbers *= 1 if stride == 0 and size else size
    return numbers * tensor.element_size()


@contextmanager
def recorded_kernels(record: DeviceRecord) -> Iterator[None]:
    """Note each kernel that a launcher launches; nothing is compiled, nothing runs."""
    from triton.runtime.interpreter import InterpretedFunction  # noqa: PLC0415 - seconds to import
    from triton.runtime.jit import JITFunction  # noqa: PLC0415 - as above

    def run(function: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        signature = inspect.signature(function.fn)
        known = {name: kwargs[name] for name in kwargs if name in signature.parameters}
        bound = signature.bind(*args, **known)
        bound.apply_defaults()
        arguments = {**kwargs, **bound.arguments}
        given = {name: each for name, each in arguments.items() if isinstance(each, Tensor)}
        devices = {each.device for each in given.values()}
        if len(devices) > 1 or any(device.type != "cuda" for device in devices):
            seen = ", ".join(f"{name} on {each.device}" for name, each in given.items())
            raise MixedDevicesError(f"{function.fn.__name__} gets {seen}")
        sizes: Any = grid(arguments) if callable(grid) else grid
        if not warmup:
            record.add(
                Launch("kernel", function.fn.__name__, grid=tuple(sizes), arguments=arguments)
            )

    with ExitStack() as patches:
        for kind in (JITFunction, InterpretedFunction):
            patches.enter_context(mock.patch.object(kind, "run", run))
        yield
