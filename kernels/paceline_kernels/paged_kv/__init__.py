"""What the attention kernels share: a tile of paged KV, and one step of the online softmax."""
