"""The device: every op of torch on its tensors becomes work of the current stream."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from paceline_kernels import dispatch, tuned
from paceline_testing.async_device.streams import Stream, stand_ins
from paceline_testing.async_device.tensors import DeviceTensor, Memory, spoil, spoiling
from paceline_testing.async_device.work import AT_ONCE, Run, Schedule, Work, Worker
from paceline_testing.cuda_stand_ins import FakeGpu

_KEPT_WHOLE = {"aten::linear", "aten::matmul"}
"""Computed as one op, though torch would take them apart."""
_FLASH = "aten::_scaled_dot_product_flash_attention"
_ATTENTIONS = {"aten::scaled_dot_product_attention", _FLASH}
"""For which torch would ask the driver, or has nothing on a CPU."""


class AsyncDevice(TorchDispatchMode):
    """A CUDA device without one, whose work is queued."""

    def __init__(self, schedule: Schedule = AT_ONCE, *, num_gpus: int = 1) -> None:
        """`num_gpus` are found; all that is computed on any of them is this device's work."""
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self.worker = Worker()
        self.worker.follow(schedule)
        self.stream_type: Any = type("Stream", (Stream,), {"of": self})
        self.stream: Stream = self.stream_type()
        """The current one."""
        self.num_gpus = num_gpus
        self.captured: list[Run] | None = None
        """What a graph holds so far, while it is captured."""
        self.before_waiting: Callable[[], None] = _nothing
        """What others do by the time that the host waits."""
        self._pinned: dict[int, StorageWeakRef] = {}
        self._is_visible = False

    @contextmanager
    def visible(self) -> Iterator["AsyncDevice"]:
        """Let torch and the engine see it; tensors made inside serve the next time too."""
        from triton.runtime.interpreter import (  # noqa: PLC0415 - seconds to import
            InterpretedFunction,
        )
        from triton.runtime.jit import JITFunction  # noqa: PLC0415 - as above

        gpu = FakeGpu()
        as_this_gpu = tuned.Gpu(gpu.name, (gpu.major, gpu.minor))
        was_lifted: bool = torch._C._only_lift_cpu_tensors()
        with ExitStack() as held:
            held.enter_context(stand_ins(self, gpu))
            held.enter_context(tuned.blocks_of.as_if(tuned.SHIPPED, as_this_gpu))
            held.enter_context(mock.patch.object(dispatch, "launcher", self._launcher))
            for kind in (JITFunction, InterpretedFunction):
                held.enter_context(mock.patch.object(kind, "run", return_value=None))
            torch._C._ensureCUDADeviceGuardSet()  # as torch's fake mode does: it asks no driver
            # `torch.tensor(..., device="cuda")` makes a tensor of the host, then copies it.
            torch._C._set_only_lift_cpu_tensors(True)
            held.callback(torch._C._set_only_lift_cpu_tensors, was_lifted)
            held.enter_context(self)
            held.enter_context(mock.patch.object(self, "_is_visible", new=True))
            yield self

    @contextmanager
    def following(self, schedule: Schedule) -> Iterator[None]:
        """Choose by this schedule, from an idle device to an idle device."""
        self.worker.follow(schedule)
        try:
            yield
        finally:
            self.wait_for_all()
            self.worker.follow(AT_ONCE)

    def add(self, run: Run, *needs: Work | None, stream: Stream | None = None) -> None:
        """Queue work on a stream, the current one unless it is named."""
        if self.captured is None:
            self.worker.add((stream or self.stream).queue, _alone(run), needs)
        else:
            self.captured.append(run)

    def wait(self, work: Work | None) -> None:
        """Let the host wait for work."""
        self._require_no_capture()
        self.before_waiting()
        self.worker.wait(work)

    def wait_for_all(self) -> None:
        """Let the host wait for everything."""
        self._require_no_capture()
        self.before_waiting()
        self.worker.wait_for_all()

    def wait_for_stream(self) -> None:
        """Let the host wait for the current stream, as it does where it looks at a number."""
        self.wait(self.stream.queue.last)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run what is the host's, queue what is the device's."""
        kwargs = kwargs or {}
        name = func._schema.name
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        is_ours = any(isinstance(each, DeviceTensor) for each in given)
        to = kwargs.get("device")
        if not is_ours and (to is None or torch.device(to).type != "cuda"):
            return self._on_host(func, name, args, kwargs)
        if name not in _KEPT_WHOLE | _ATTENTIONS and func._can_decompose():
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        with _disable_current_modes(), torch.inference_mode():
            if name == "aten::copy_" and (isinstance(args[0], DeviceTensor) != _is_ours(args[1])):
                return self._copy(args[0], args[1], non_blocking=_is_set(args, kwargs))
            if name == "aten::_to_copy" and to is not None and is_ours != _is_cuda(to):
                return self._moved(args[0], kwargs)
            if to is not None and not _is_cuda(to):  # `empty_like` on the host, and so on
                like = _on_host_as(args[0], args[0].dtype)
                with torch.inference_mode(mode=False):
                    return self._on_host(func, name, (like, *args[1:]), kwargs)
            return self._on_device(func, args, kwargs)

    def _on_host(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "aten::is_pinned":
            return self._is_pinned(args[0])
        if name in {"aten::pin_memory", "aten::_pin_memory"}:
            return self._pin(args[0].clone())
        if kwargs.get("pin_memory"):
            return self._pin(func(*args, **{**kwargs, "pin_memory": False}))
        return func(*args, **kwargs)

    def _on_device(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func._schema.name in _ATTENTIONS:
            q, k, v, *_ = args
            return self._attended(func._schema.name, q, k, v, kwargs["scale"])
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        kwargs.pop("pin_memory", None)
        real_args, real_kwargs = tree_map(_real, args), tree_map(_real, kwargs)
        if func.is_view:
            memory = next(each.memory for each in args if isinstance(each, DeviceTensor))
            seen = func(*real_args, **real_kwargs)
            return tree_map(lambda each: _seen_as(each, memory), seen)
        if func._schema.is_mutable:
            self.add(functools.partial(func, *real_args, **real_kwargs))
            return _written(func, args, kwargs)
        shapes = _shapes(func, real_args, real_kwargs)
        if shapes is None:  # they depend on values: the host has to wait for them
            self.wait_for_stream()
            return tree_map(self._taken, func(*real_args, **real_kwargs))
        results = tree_map(self._fresh, shapes)
        if any(name in func._schema.name for name in ("::empty", "::new_empty")):
            return results
        self.add(
            functools.partial(_compute, func, real_args, real_kwargs, tree_map(_real, results))
        )
        return results

    def _attended(self, name: str, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Any:
        """Attend causally from the last tokens of a context, as in all that the engine asks."""
        real = tree_map(_real, (q, k, v))
        out = self._fresh(real[0])
        self.add(functools.partial(_compute, _attend, (*real, scale), {}, _real(out)))
        # What else it returns is for a backward pass.
        return (out, *[None] * 3, 0, 0, *[None] * 3) if name == _FLASH else out

    def _copy(self, target: Tensor, source: Tensor, *, non_blocking: bool) -> Tensor:
        """Copy between host and device."""
        host = source if isinstance(target, DeviceTensor) else target
        is_queued = non_blocking and self._is_pinned(host)
        if isinstance(target, DeviceTensor):
            real = source if is_queued else source.clone()
            self.add(functools.partial(target.numbers.copy_, real))
            return target
        assert isinstance(source, DeviceTensor)
        if is_queued:
            spoil(target)
            self.add(functools.partial(target.copy_, source.numbers))
        else:
            self.wait_for_stream()
            target.copy_(source.numbers)
        return target

    def _moved(self, source: Tensor, kwargs: Any) -> Tensor:
        """Copy into new memory of the other side."""
        dtype = kwargs.get("dtype") or source.dtype
        new = _on_host_as(source, dtype)
        is_queued = bool(kwargs.get("non_blocking"))
        if not isinstance(source, DeviceTensor):
            return self._copy(self._fresh(new), source, non_blocking=is_queued)
        target = self._pin(new) if kwargs.get("pin_memory") else new
        return self._copy(target, source, non_blocking=is_queued)

    def _fresh(self, shape: Any) -> Any:
        """Take memory on the device."""
        if not isinstance(shape, Tensor):
            return shape
        real = torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype)
        spoil(real)
        return self._taken(real)

    def _taken(self, real: Any) -> Any:
        if not isinstance(real, Tensor):
            return real
        is_captured = self.captured is not None
        freed = self._freed_in_capture if is_captured else self._freed
        return DeviceTensor(real, Memory(real, self.stream.queue, freed))

    def _freed(self, memory: Memory) -> None:
        if not self._is_visible:  # at the end of a test, or of the process
            return
        last = [queue.last for queue in (memory.queue, *memory.used_on)]
        self.worker.add_loose(_alone(spoiling(memory.whole)), last)

    def _freed_in_capture(self, memory: Memory) -> None:
        if self.captured is not None:
            self.captured.append(spoiling(memory.whole))

    def _launcher(self, reference: Callable[..., Any]) -> Callable[..., Any]:
        """Queue a kernel of ours: its launcher takes the memory, its reference computes."""
        launch = _launcher_of(reference)

        @functools.wraps(reference)
        def kernel(*args: Any, **kwargs: Any) -> Any:
            results = launch(*args, **kwargs)
            real = tree_map(_real, (args, kwargs, results))
            self.add(functools.partial(_compute, reference, *real))
            return results

        return kernel

    def _is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._pinned

    def _pin(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        # A weak reference keeps the address from being given to others.
        self._pinned[storage._cdata] = StorageWeakRef(storage)
        return tensor

    def _require_no_capture(self) -> None:
        if self.captured is not None:
            raise RuntimeError("operation not permitted when stream is capturing")


_launcher_of = dispatch.launcher


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attend by the op that no setting of torch's leaves out."""
    tokens, context = q.shape[2], k.shape[2]
    hidden = torch.full((tokens, context), float("-inf")).triu(1 + context - tokens)
    attend = torch.ops.aten._scaled_dot_product_attention_math
    out: Tensor = attend(q, k, v, hidden.to(q.dtype), scale=scale, enable_gqa=True)[0]
    return out


def _nothing() -> None: ...


def _alone(run: Run) -> Run:
    """Run it as the device does: no mode of torch's sees it."""

    def work() -> None:
        with _disable_current_modes(), torch.inference_mode():
            run()

    return work


def _compute(func: Callable[..., Any], args: Any, kwargs: Any, results: Any) -> None:
    computed = func(*args, **kwargs)
    if computed is None:  # a reference leaves out what only the kernels read
        return
    for result, value in zip(tree_leaves(results), tree_leaves(computed), strict=True):
        if isinstance(result, Tensor) and result is not value:
            result.copy_(value)


def _real(each: Any) -> Any:
    if isinstance(each, DeviceTensor):
        return each.numbers
    # A number or an index of the host's: handed over as it is now.
    return each.clone() if isinstance(each, Tensor) else each


def _on_host_as(source: Tensor, dtype: torch.dtype) -> Tensor:
    """Take memory on the host; what inference takes can be written to by others."""
    shape = torch.empty_strided(source.shape, source.stride(), device="meta")
    with torch.inference_mode(mode=False):
        return torch.empty_like(shape, device="cpu", dtype=dtype)


def _is_ours(each: Any) -> bool:
    return isinstance(each, DeviceTensor)


def _is_cuda(device: Any) -> bool:
    return torch.device(device).type == "cuda"


def _is_set(args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("non_blocking") or any(args[2:]))


def _seen_as(each: Any, memory: Memory) -> Any:
    return DeviceTensor(each, memory) if isinstance(each, Tensor) else each


def _shapes(func: Any, args: Any, kwargs: Any) -> Any:
    """Compute without numbers; None where the shape depends on them."""

    def shape(each: Any) -> Any:
        if isinstance(each, Tensor):
            return torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="meta")
        return torch.device("meta") if isinstance(each, torch.device) else each

    try:
        found = func(*tree_map(shape, args), **tree_map(shape, kwargs))
    except (NotImplementedError, RuntimeError):
        return None
    return found if all(isinstance(each, Tensor) for each in tree_leaves(found)) else None


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the tensors that an op writes, as it does itself."""
    named = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
    written = [
        named[each.name]
        for each in func._schema.arguments
        if each.alias_info is not None and each.alias_info.is_write
    ]
    if not func._schema.returns:
        return None
    return written[0] if len(func._schema.returns) == 1 else tuple(written)
