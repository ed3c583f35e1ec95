"""What a dependent launch begins with, in Triton."""

import triton
import triton.language as tl


@triton.jit
def wait_for_earlier(IS_DEPENDENT: tl.constexpr):
    """Wait until all that was launched before has ended and its memory is seen.

    The first statement of a kernel: before any access to memory, and any return. Then the next
    kernel may begin; it waits for this one in the same way.
    """
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
