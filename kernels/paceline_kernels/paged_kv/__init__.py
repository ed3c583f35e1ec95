"""What the attention kernels share: attention of a tile of queries over a range of paged KV."""
