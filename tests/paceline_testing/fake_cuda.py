"""A CUDA device without one: tensors there have shapes and no memory, and hidden waits are refused.

Host tensors are real, so what the engine stages is written. A tensor on the device is torch's fake
one: every op computes its shape alone. What a GPU would refuse, or do while the host waits, raises
here with the op's name: tensors of two devices in one op, numbers of the device that the host looks
at, copies from or to memory that is not pinned, and ops whose shape depends on values.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paceline_kernels import tuned
from paceline_testing.cuda_stand_ins import FakeGpu, cuda_stand_ins
from paceline_testing.device_record import (
    DeviceRecord,
    Launch,
    MixedDevicesError,
    bytes_of,
    noted,
    recorded_kernels,
)


class HiddenWaitError(AssertionError):
    """The host would wait for the device, where nobody sees it."""


# What each tells the host is known only when the device has computed it.
_LOOKS = {
    "aten::_local_scalar_dense": "the host reads a number",
    "aten::is_nonzero": "the host reads a number",
    "aten::equal": "the host learns the result",
    "aten::allclose": "the host learns the result",
    "aten::nonzero": "its length depends on values",
    "aten::masked_select": "its length depends on values",
    "aten::_unique2": "its length depends on values",
    "aten::unique_dim": "its length depends on values",
    "aten::unique_consecutive": "its length depends on values",
    "aten::bincount": "its length depends on values",
}
_INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
_ATTENTION = "aten::scaled_dot_product_attention"
_COPIES = {"aten::copy_", "aten::_to_copy"}
_LIKES = {"aten::empty_like", "aten::zeros_like", "aten::ones_like", "aten::full_like"}
_LIKES |= {"aten::new_empty", "aten::new_zeros", "aten::new_full"}
_PEER_SUMS = {"symm_mem::one_shot_all_reduce_out", "symm_mem::two_shot_all_reduce_out"}
_KEPT_WHOLE = {"aten::linear", "aten::matmul"}
"""One launch each, though torch would take them apart."""


class FakeCuda(TorchDispatchMode):
    """Runs what touches the device on fake tensors, everything else as it is."""

    def __init__(self, gpu: FakeGpu | None = None, *, num_gpus: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self.gpu = gpu or FakeGpu()
        self.num_gpus = num_gpus
        self.record = DeviceRecord()
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._pinned: dict[int, StorageWeakRef] = {}
        self._is_loading = False

    @contextmanager
    def visible(self) -> Iterator["FakeCuda"]:
        """Let torch and the engine see the GPUs; tensors made inside serve the next time too."""
        capability = self.gpu.major, self.gpu.minor
        as_this_gpu = tuned.Gpu(self.gpu.name, capability, self.gpu.multi_processor_count)
        was_lifted: bool = torch._C._only_lift_cpu_tensors()
        with ExitStack() as held:
            held.enter_context(cuda_stand_ins(self.record, self.gpu, self.num_gpus))
            held.enter_context(recorded_kernels(self.record))
            held.enter_context(tuned.blocks_of.as_if(tuned.SHIPPED, as_this_gpu))
            # torch 2.11 makes a tensor on the GPU first, which asks the driver.
            held.enter_context(mock.patch.object(fake_tensor, "init_gpu_context"))
            torch._C._ensureCUDADeviceGuardSet()  # as torch's fake mode does: it asks no driver
            # `torch.tensor(..., device="cuda")` makes a tensor of the host, then copies it.
            torch._C._set_only_lift_cpu_tensors(True)
            held.callback(torch._C._set_only_lift_cpu_tensors, was_lifted)
            held.enter_context(self)
            yield self

    @contextmanager
    def loading(self) -> Iterator[None]:
        """While a model is loaded, copies that wait are allowed: nobody is served yet."""
        before, self._is_loading = self._is_loading, True
        try:
            yield
        finally:
            self._is_loading = before

    def is_pinned(self, tensor: Tensor) -> bool:
        """Tell whether the device can read and write this memory of the host by itself."""
        return tensor.untyped_storage()._cdata in self._pinned

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one op."""
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        name = func._schema.name
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        to = _device_among(args, kwargs)
        if name in _LIKES and to is not None and to.type == "cpu":
            args = (torch.empty(args[0].shape, dtype=args[0].dtype), *args[1:])
            return self._on_host(func, name, args, kwargs)
        is_on_device = any(each.is_cuda for each in tensors)
        if not is_on_device and (to is None or to.type != "cuda"):
            return self._on_host(func, name, args, kwargs)
        if name == _ATTENTION:  # torch would ask the driver how it attends
            _refuse_mixed(func, name, args, tensors)
            attended = torch.empty_like(args[0])
            self.record.add(noted(func, args, kwargs, attended) or Launch("op", str(func)))
            return attended
        if name not in _KEPT_WHOLE and func._can_decompose():
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        return self._on_device(func, name, args, kwargs, tensors)

    def _on_device(
        self, func: Any, name: str, args: Any, kwargs: Any, tensors: list[Tensor]
    ) -> Any:
        _refuse_looks(func, name, args, kwargs)
        if name in _COPIES and (copied := self._across(func, args, kwargs)) is not None:
            return copied
        _refuse_mixed(func, name, args, tensors)
        if name in _PEER_SUMS:
            return self._sum_of_peers(func, *args)
        with self._fake:
            result = _made(func, args, kwargs)
        if (launch := noted(func, args, kwargs, result)) is not None:
            self.record.add(launch)
        return result

    def _sum_of_peers(
        self, func: Any, place: Tensor, reduce_op: str, _group: str, out: Tensor
    ) -> Tensor:
        """Refuse what torch refuses; it has no shape function of these."""
        assert reduce_op == "sum"
        assert place.is_contiguous()
        assert out.is_contiguous()
        assert place.shape == out.shape
        assert place.dtype in {torch.bfloat16, torch.float32}
        self.record.add(Launch("sum of ranks", str(func), bytes_of(place), bytes_of(out)))
        return out

    def _on_host(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "aten::is_pinned":
            return self.is_pinned(args[0])
        if name in {"aten::pin_memory", "aten::_pin_memory"}:
            return self._pin(args[0].clone())
        if kwargs.get("pin_memory"):
            return self._pin(func(*args, **{**kwargs, "pin_memory": False}).zero_())
        return func(*args, **kwargs)

    def _pin(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        # A weak reference keeps the address from being given to others.
        self._pinned[storage._cdata] = StorageWeakRef(storage)
        return tensor

    def _across(self, func: Any, args: Any, kwargs: Any) -> Tensor | None:
        """Copy between host and device; None where both ends are on one side."""
        target = args[0] if func._schema.is_mutable else None
        source = args[0] if target is None else args[1]
        to = torch.device(
            kwargs.get("device") or source.device if target is None else target.device
        )
        if to.type == source.device.type:
            return None
        dtype = kwargs.get("dtype") or (source if target is None else target).dtype
        if not self._is_loading:
            host = target if source.is_cuda else source
            # Where there is no target yet, its memory is taken by this op.
            is_pinned = kwargs.get("pin_memory") if host is None else self.is_pinned(host)
            route = f"{tuple(source.shape)} from {source.device} to {to}"
            says = f"{func} of {route} makes the host wait"
            if not is_pinned:
                raise HiddenWaitError(f"{says}: its memory there is not pinned")
            if not (kwargs.get("non_blocking") or any(args[2:])):
                raise HiddenWaitError(f"{says}: it is not non_blocking")
            is_converted = not source.is_cuda and dtype != source.dtype
            if is_converted or (host is not None and not host.is_contiguous()):
                raise HiddenWaitError(f"{says}: torch copies it first, to memory not pinned")
        num_bytes = source.numel() * source.element_size()
        self.record.add(Launch("copy", f"{source.device.type} to {to.type}", num_bytes))
        if target is not None:
            return cast("Tensor", target)
        if to.type == "cpu":
            out = torch.zeros(source.shape, dtype=dtype)
            return self._pin(out) if kwargs.get("pin_memory") else out
        with self._fake:
            return torch.empty(source.shape, dtype=dtype, device=to)


def _made(func: Any, args: Any, kwargs: Any) -> Any:
    """Give what an op returns; torch has no shape function of products of FP8 into a place."""
    if func is not torch.ops.aten._scaled_mm.out:
        return func(*args, **kwargs)
    place: Tensor = kwargs["out"]
    asked = {name: each for name, each in kwargs.items() if name != "out"}
    made: Tensor = torch.ops.aten._scaled_mm(*args, **asked)
    assert (place.shape, place.dtype, place.stride()) == (made.shape, made.dtype, made.stride())
    return place


def _device_among(args: Any, kwargs: Any) -> torch.device | None:
    named = (kwargs.get("device"), *args)
    return next((each for each in named if isinstance(each, torch.device)), None)


def _refuse_looks(func: Any, name: str, args: Any, kwargs: Any) -> None:
    if why := _LOOKS.get(name):
        raise HiddenWaitError(f"{func} makes the host wait: {why}")
    if str(func) == "aten.repeat_interleave.Tensor" and kwargs.get("output_size") is None:
        raise HiddenWaitError(f"{func} makes the host wait: it is given no output_size")
    if name in _INDEXED:
        masks = (torch.bool, torch.uint8)
        if any(each is not None and each.dtype in masks for each in args[1]):
            raise HiddenWaitError(f"{func} makes the host wait: an index is a mask")


def _refuse_mixed(func: Any, name: str, args: Any, tensors: list[Tensor]) -> None:
    """A number of the host's is handed to a kernel as its argument; an index is copied."""
    indices = args[1] if name in _INDEXED else ()
    read = [each for each in tensors if each.is_cuda or each.dim() > 0]
    read += [each for each in indices if each is not None]
    if len({each.device for each in read}) > 1 and name not in _COPIES:
        sides = ", ".join(f"{tuple(each.shape)} on {each.device}" for each in tensors)
        raise MixedDevicesError(f"{func} takes tensors of two devices: {sides}")
