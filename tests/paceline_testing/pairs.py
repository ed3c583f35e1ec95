"""KV caches as the compiled attention in bfloat16 keeps them, and as everybody else does."""

from torch import Tensor


def paired_keys(keys: Tensor) -> Tensor:  # [blocks, block_size, kv_heads, head_size]
    """Pair the numbers of each key: [blocks, kv_heads, head_size / 2, block_size, 2]."""
    return keys.view(*keys.shape[:3], -1, 2).permute(0, 2, 3, 1, 4).contiguous()


def paired_values(values: Tensor) -> Tensor:  # [blocks, block_size, kv_heads, head_size]
    """Pair each value with the next: [blocks, kv_heads, block_size / 2, head_size, 2]."""
    return values.view(len(values), -1, 2, *values.shape[2:]).permute(0, 3, 1, 4, 2).contiguous()


def plain_keys(pairs: Tensor) -> Tensor:
    """Undo `paired_keys`."""
    return pairs.permute(0, 3, 1, 2, 4).flatten(3).contiguous()


def plain_values(pairs: Tensor) -> Tensor:
    """Undo `paired_values`."""
    return pairs.permute(0, 2, 4, 1, 3).flatten(1, 2).contiguous()
