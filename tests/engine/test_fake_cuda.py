"""The fake GPU refuses what a GPU would refuse, or would let the host wait for in hiding."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paceline_engine.core.step_tensors import to_device
from paceline_kernels.activation.kernel import silu_mul
from paceline_testing.device_record import MixedDevicesError
from paceline_testing.fake_cuda import FakeCuda, HiddenWaitError

CUDA = torch.device("cuda", 0)
HOST = torch.ones(5)


def _pinned(*sizes: int) -> Tensor:
    return torch.empty(sizes, pin_memory=True)


def _in_place(x: Tensor) -> None:
    x[x > 0] += HOST[0]


WAITS: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "item": (lambda x: x[0, 0].item(), "_local_scalar_dense"),
    "tolist": (lambda x: x.tolist(), "_local_scalar_dense"),
    "bool": (lambda x: bool(x.any()), "_local_scalar_dense"),
    "float": (lambda x: float(x.sum()), "_local_scalar_dense"),
    "a bound of a slice": (lambda x: x[: x.sum().long()], "_local_scalar_dense"),
    "in": (lambda x: 3 in x, "_local_scalar_dense"),
    "cpu": (lambda x: x.cpu(), "_to_copy"),
    "to the host, non_blocking": (lambda x: x.to("cpu", non_blocking=True), "_to_copy"),
    "into pageable memory": (lambda x: HOST.copy_(x[0], non_blocking=True), "copy_"),
    "into pinned memory, blocking": (lambda x: _pinned(5).copy_(x[0]), "copy_"),
    "out of pageable memory": (lambda x: x.copy_(HOST, non_blocking=True), "copy_"),
    "out of pinned memory, blocking": (lambda x: x[0].copy_(_pinned(5)), "copy_"),
    "converted on the way": (lambda x: x.half()[0].copy_(_pinned(5), non_blocking=True), "copy_"),
    "out of columns": (lambda x: x[0].copy_(_pinned(5, 2)[:, 0], non_blocking=True), "copy_"),
    "into columns": (lambda x: _pinned(5, 2)[:, 0].copy_(x[0], non_blocking=True), "copy_"),
    "to another type": (lambda _: _pinned(3).to(CUDA, torch.half, non_blocking=True), "_to_copy"),
    "pageable to the device": (lambda _: HOST.to(CUDA, non_blocking=True), "_to_copy"),
    "a list to the device": (lambda _: torch.tensor([1, 2], device=CUDA), "_to_copy"),
    "rows by a list": (lambda x: x[[1, 2]], "_to_copy"),
    "rows by a mask": (lambda x: x[x[:, 0] > 0], "index"),
    "added to where a mask says": (_in_place, "index"),
    "nonzero": (lambda x: x.nonzero(), "nonzero"),
    "where": (torch.where, "nonzero"),
    "masked_select": (lambda x: x.masked_select(x > 0), "masked_select"),
    "unique": (lambda x: x.unique(), "unique"),
    "bincount": (lambda x: x[0].long().bincount(), "bincount"),
    "equal": (lambda x: torch.equal(x, x), "equal"),
    "allclose": (lambda x: torch.allclose(x, x), "allclose"),
    "repeated by counts": (lambda x: x.repeat_interleave(x[:, 0].long(), 0), "repeat_interleave"),
}


@pytest.mark.parametrize(("op", "name"), WAITS.values(), ids=WAITS)
def test_a_hidden_wait_is_refused(op: Callable[[Tensor], object], name: str) -> None:
    """The message names the op."""
    with FakeCuda().visible(), pytest.raises(HiddenWaitError, match=rf"aten\.\w*{name}.*wait"):
        op(torch.zeros(4, 5, device=CUDA))


def test_numpy_is_refused() -> None:
    """Torch does so by itself, as it does on a GPU."""
    with FakeCuda().visible(), pytest.raises(RuntimeError, match="numpy"):
        torch.zeros(3, device=CUDA).numpy()


MIXES: dict[str, Callable[[Tensor], object]] = {
    "add": lambda x: x + HOST,
    "cat": lambda x: torch.cat([x[0], HOST]),
    "mm": lambda x: functional.linear(x, torch.ones(2, 5)),
    "index": lambda x: x[torch.tensor([1, 2])],
    "index_put_": lambda x: x.index_put_((torch.tensor([1, 2]),), x[0]),
}


@pytest.mark.parametrize(("name", "op"), MIXES.items(), ids=MIXES)
def test_two_devices_in_one_op_are_refused(name: str, op: Callable[[Tensor], object]) -> None:
    """An index on the host too, though a GPU would take it: it would copy it first, and wait."""
    with FakeCuda().visible(), pytest.raises(MixedDevicesError, match=rf"aten\.{name}\b.*on cpu"):
        op(torch.zeros(4, 5, device=CUDA))


def test_two_gpus_in_one_op_are_refused() -> None:
    """A rank computes on its own."""
    with FakeCuda(num_gpus=2).visible():
        x, y = torch.zeros(3, device="cuda:0"), torch.zeros(3, device="cuda:1")

        with pytest.raises(MixedDevicesError, match=r"aten\.add.*cuda:0.*cuda:1"):
            x.add(y)


def test_a_kernel_takes_no_tensor_of_the_host() -> None:
    """Its address would mean nothing on the device."""
    with FakeCuda().visible(), pytest.raises(MixedDevicesError, match=r"_gate_mul_kernel.*cpu"):
        silu_mul(torch.ones(3, 16))


def test_a_wait_in_a_capture_is_refused() -> None:
    """As CUDA does."""
    with FakeCuda().visible():
        event = torch.cuda.Event()
        event.record()
        torch.cuda.CUDAGraph().capture_begin()

        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            event.synchronize()


def test_what_does_not_wait_is_computed() -> None:
    """Numbers of the host in an op, copies through pinned memory, and writes by a mask."""
    with FakeCuda().visible() as fake:
        x = torch.zeros(4, 5, device=CUDA)
        x[x > 1] = 2.0
        y = functional.linear(x * torch.tensor(2.0), x)
        host = _pinned(4, 4).copy_(y, non_blocking=True)
        back = to_device(np.ones(3), CUDA)

        assert y.shape == (4, 4)
        assert (host.device.type, back.device) == ("cpu", CUDA)
        assert [launch.kind for launch in fake.record.launches][-3:] == ["product", "copy", "copy"]
        assert not fake.record.waits
