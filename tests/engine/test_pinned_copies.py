"""Weights on their way to a GPU, in pieces."""

import pytest
import torch

from paceline_engine.loading.pinned_copies import PinnedCopies


# In pieces of 64 bytes: none, a part of one, whole ones, and a rest.
@pytest.mark.parametrize("shape", [(), (1,), (7,), (8, 4), (33, 5), (0, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_every_tensor_arrives_whole(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """One after the other through the same two buffers."""
    copies = PinnedCopies(torch.device("cpu"), piece_bytes=64)
    tensors = [(100 * torch.randn(shape)).to(dtype) for _ in range(3)]

    arrived = [copies.put(tensor) for tensor in tensors]

    for seen, sent in zip(arrived, tensors, strict=True):
        assert seen.dtype == sent.dtype
        torch.testing.assert_close(seen, sent, rtol=0, atol=0)


def test_a_view_arrives_as_it_is_read() -> None:
    """A rank's part of a weight need not lie in one piece."""
    whole = torch.randn(6, 10)

    arrived = PinnedCopies(torch.device("cpu"), piece_bytes=64).put(whole[:, 2:5])

    torch.testing.assert_close(arrived, whole[:, 2:5], rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_gets_what_was_sent() -> None:
    """A buffer is not written again before its last piece has gone."""
    copies = PinnedCopies(torch.device("cuda"), piece_bytes=1 << 20)
    tensors = [torch.randn(3_000_000 + 17 * n) for n in range(8)]

    arrived = [copies.put(tensor) for tensor in tensors]

    for seen, sent in zip(arrived, tensors, strict=True):
        torch.testing.assert_close(seen.cpu(), sent, rtol=0, atol=0)
