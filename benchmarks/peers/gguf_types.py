"""Which types the weights of a GGUF file have: its name tells only the one that was asked for."""

from collections import Counter
from pathlib import Path

from gguf import GGUFReader


def described(file: Path) -> str:
    """Return each type's share of the file's bytes, the largest first; norms are left out."""
    num_bytes: Counter[str] = Counter()
    for tensor in GGUFReader(file).tensors:
        num_bytes[tensor.tensor_type.name] += int(tensor.n_bytes)
    total = num_bytes.total()
    shares = [(name, count / total) for name, count in num_bytes.most_common()]
    return ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.01)
