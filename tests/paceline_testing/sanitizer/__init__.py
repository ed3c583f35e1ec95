"""Kernels in Triton's interpreter, with every access to memory checked.

A launch within `sanitized()` raises `KernelFaultError` where it

* touches memory outside of the elements of the tensor that a pointer was made of;
* races: two programs touch one address and one of them writes, lanes of one store write different
  numbers to one address, or a program reads what it wrote itself with no barrier in between;
* reaches an address by way of a whole number that does not fit its type;
* reads memory of `torch.empty` that nothing has written.

Atomics at one address order what programs did before them, up to the last barrier of each, before
what others do behind them.
A masked load without `other=` yields garbage in the lanes that the mask leaves out, as on a GPU.

Overflow is followed through the arithmetic of tensors, not through reductions.
"""

from paceline_testing.sanitizer.launches import Sanitizer, sanitized
from paceline_testing.sanitizer.memory import KernelFaultError, sparse

__all__ = ["KernelFaultError", "Sanitizer", "sanitized", "sparse"]
