"""The levels of CPUs that an image ships the ops for, and what each needs."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from paceline_kernels.cpu.cpu_features import Cpu

# x86-64-v3 and -v4 of the x86-64 psABI, in the names of /proc/cpuinfo (`abm` is LZCNT, `pni` SSE3).
_V3: Final = frozenset(
    {
        *("cx16", "lahf_lm", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2"),
        *("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"),
    }
)
_V4: Final = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_VNNI: Final = _V4 | {"avx512_vnni"}
_BF16: Final = _VNNI | {"avx512_bf16"}
_AMX: Final = _BF16 | {"amx_tile", "amx_bf16", "amx_int8"}
_BF16_OPTIONS: Final = ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16")


@dataclass(frozen=True, slots=True)
class Level:
    """One build of the ops, for every CPU that has its features."""

    name: str
    machine: str
    features: frozenset[str]
    """All that its code may use, in the names of /proc/cpuinfo."""
    options: tuple[str, ...]
    """The compiler's, which allow these features and no others."""

    def runs_on(self, cpu: Cpu) -> bool:
        """Tell whether the CPU knows each instruction that this build may hold."""
        return self.machine == cpu.machine and self.features <= cpu.features


LEVELS: Final = (
    Level(
        "x86-64-v4-amx",
        "x86_64",
        _AMX,
        (*_BF16_OPTIONS, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    ),
    Level("x86-64-v4-bf16", "x86_64", _BF16, _BF16_OPTIONS),
    Level("x86-64-v4-vnni", "x86_64", _VNNI, ("-march=x86-64-v4", "-mavx512vnni")),
    Level("x86-64-v4", "x86_64", _V4, ("-march=x86-64-v4",)),
    Level("x86-64-v3-vnni", "x86_64", _V3 | {"avx_vnni"}, ("-march=x86-64-v3", "-mavxvnni")),
    Level("x86-64-v3", "x86_64", _V3, ("-march=x86-64-v3",)),
    Level("armv8-a", "aarch64", frozenset({"fp", "asimd"}), ("-march=armv8-a",)),
)
"""From the fastest to the one that most CPUs have."""

_DECISIVE: Final = (
    "amx_bf16",
    "amx_int8",
    "avx512_bf16",
    "avx512_vnni",
    "avx512f",
    "avx_vnni",
    "avx2",
    "fma",
    "asimd",
)


def decisive_features(features: Collection[str]) -> tuple[str, ...]:
    """Name those features that decide how fast the ops are, the strongest first."""
    return tuple(each for each in _DECISIVE if each in features)
