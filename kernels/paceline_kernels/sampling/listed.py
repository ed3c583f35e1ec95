"""Groups of a row that are read again: their list, and reading a batch of them."""

import triton
import triton.language as tl


@triton.jit
def list_groups(groups, is_listed, list_ptr):
    """Write down which groups are read again, in order; how many they are."""
    ones = is_listed.to(tl.int32)
    tl.store(list_ptr + tl.cumsum(ones, axis=0) - 1, groups, mask=is_listed)
    tl.debug_barrier()  # the other threads of the program read the list
    return tl.sum(ones, axis=0)


@triton.jit
def listed(
    logits_ptr, list_ptr, num_listed, first, vocab, GROUP: tl.constexpr, BATCH: tl.constexpr
):
    """The logits [BATCH, GROUP] of the groups listed from `first` on, and their columns."""
    places = first + tl.arange(0, BATCH)
    groups = tl.load(list_ptr + places, mask=places < num_listed, other=0)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = (places < num_listed)[:, None] & (columns < vocab)
    x = tl.load(logits_ptr + columns, mask=inside, other=float("-inf")).to(tl.float32)
    return x, columns, groups
