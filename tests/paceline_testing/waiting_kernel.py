"""A loop that the compiler cannot overlap: it loads where a tile lies in the round of its use."""

# ruff: noqa: N803, PLR0917 - a kernel's names and arguments, as in `paceline_kernels`

import torch
import triton
import triton.language as tl


@triton.jit
def _waiting_kernel(x_ptr, pages_ptr, table_ptr, out_ptr, num_tiles, SIZE: tl.constexpr):
    """Sum up products of x [16, SIZE] with the tiles [SIZE, SIZE] that a table names."""
    row = tl.arange(0, SIZE)
    x = tl.load(x_ptr + tl.arange(0, 16)[:, None] * SIZE + row[None, :])
    total = tl.zeros([16, SIZE], dtype=tl.float32)
    for tile in range(num_tiles):
        page = tl.load(table_ptr + tile * SIZE + row)
        y = tl.load(pages_ptr + page[:, None] * SIZE + row[None, :])
        total = tl.dot(x, tl.trans(y), total)
    tl.store(out_ptr + tl.arange(0, 16)[:, None] * SIZE + row[None, :], total)


def launch() -> None:
    """Launch it on zeros."""
    size = 64
    x, pages = torch.zeros(16, size).bfloat16(), torch.zeros(4 * size, size).bfloat16()
    table = torch.zeros(4 * size, dtype=torch.int32)
    out = torch.zeros(16, size)
    _waiting_kernel[(1,)](x, pages, table, out, 4, SIZE=size, num_warps=4, num_stages=3)
