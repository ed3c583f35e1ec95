"""The valid entries of the block-size table: each kernel's shape classes and block sizes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

Shape = Mapping[str, int | str]
"""A class of calls: `{"columns": 128, "bits": 16, "kv": "own"}`."""
Blocks = Mapping[str, int]
"""What a program holds at a time: `{"rows": 128, "tokens": 64, "num_warps": 8, …}`."""


@dataclass(frozen=True, slots=True)
class Space:
    """The shape classes and the block sizes of one kernel."""

    classes: Mapping[str, tuple[int | str, ...]]
    """Values that tell calls apart, in the order of what they demand of a program."""
    blocks: Mapping[str, tuple[int, ...]]
    """Values that each size may have."""

    def shapes(self) -> Iterator[Shape]:
        """Every class of calls, the most demanding last."""
        for values in product(*self.classes.values()):
            yield dict(zip(self.classes, values, strict=True))


def _powers(first: int, last: int) -> tuple[int, ...]:
    return tuple(1 << n for n in range(first.bit_length() - 1, last.bit_length()))


_WARPS = _powers(1, 16)
_STAGES = (1, 2, 3, 4, 5)
# `columns` is the power of two that holds a row: of a head, or of the hidden state.
# `kv` is how keys and values lie in the cache: in the queries' own type, or in FP8.
_ATTENTION: Mapping[str, tuple[int | str, ...]] = {
    "kv": ("own", "fp8"),
    "bits": (16, 32),
    "columns": _powers(16, 256),
}

SPACES: Mapping[str, Space] = MappingProxyType(
    {
        "prefill_attention": Space(
            # `bounds`: a window, a soft cap, or a head that is narrower than its columns.
            classes={**_ATTENTION, "bounds": ("none", "some")},
            blocks={
                "rows": _powers(16, 256),
                "tokens": _powers(16, 128),
                "num_warps": _WARPS,
                "num_stages": _STAGES,
            },
        ),
        "decode_attention": Space(
            classes=_ATTENTION,
            blocks={
                "tokens": _powers(16, 128),
                "num_warps": _WARPS,
                "num_stages": _STAGES,
                # At a time on one multiprocessor.
                "programs": tuple(range(1, 9)),
            },
        ),
        "quantized_linear": Space(
            # At most so many rows, the last of them also for more.
            classes={"bits": (16, 32), "rows": (16, 64, 128)},
            blocks={
                "rows": _powers(16, 256),
                "outputs": _powers(16, 256),
                "inputs": _powers(16, 256),
                "num_warps": _WARPS,
                "num_stages": _STAGES,
            },
        ),
        "row_product": Space(
            # At most so many rows.
            classes={"bits": (16, 32), "rows": (16, 64, 128)},
            blocks={
                "rows": _powers(16, 128),
                "outputs": _powers(32, 256),
                "inputs": _powers(16, 256),
                "num_warps": _WARPS,
                "num_stages": _STAGES,
            },
        ),
        "int4_linear": Space(
            classes={"bits": (16, 32), "rows": (16, 64, 128)},
            blocks={
                "rows": _powers(16, 256),
                "outputs": _powers(16, 256),
                "inputs": (32, 128),
                "num_warps": _WARPS,
                "num_stages": _STAGES,
                # That a call is cut into, at least, where the inputs are long enough.
                "programs": _powers(1, 4096),
            },
        ),
        "fused_experts": Space(
            # `weight` is what is multiplied: both in the rows' own type, weights in FP8, or both.
            # `rows` are those of a tile: twice an expert's average share of the slots, at least.
            classes={
                "weight": ("own", "fp8", "fp8_dynamic"),
                "bits": (16, 32),
                "rows": (16, 64, 128),
            },
            blocks={
                "rows": _powers(16, 256),
                "outputs": _powers(32, 256),
                "inputs": _powers(32, 256),
                "num_warps": _WARPS,
                "num_stages": _STAGES,
            },
        ),
        "rms_norm": Space(
            # `out` is what the norm is written as: in its input's own type, or in FP8.
            classes={"out": ("own", "fp8"), "columns": _powers(1, 16384)},
            blocks={"num_warps": _powers(1, 32)},
        ),
        "quantize_rows": Space(
            classes={}, blocks={"columns": _powers(128, 8192), "num_warps": _WARPS}
        ),
        "gate_mul": Space(classes={}, blocks={"columns": _powers(128, 8192), "num_warps": _WARPS}),
        "gate_mul_fp8": Space(
            # The last of them also for more.
            classes={"columns": _powers(1, 32768)},
            blocks={"columns": _powers(128, 16384), "num_warps": _powers(1, 32)},
        ),
        "rope_and_store_kv": Space(
            classes={"columns": _powers(1, 256)},
            blocks={"heads": _powers(1, 64), "num_warps": _WARPS},
        ),
    }
)
