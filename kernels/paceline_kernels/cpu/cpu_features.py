"""What the CPU at hand can do, as far as the operating system lets it.

Linux names the features in /proc/cpuinfo. A register file that the system does not save between
threads cannot be used, whatever the CPU has: Linux tells which it saves (the bits of XCR0), and a
process has to ask for the tiles of AMX.
"""

import ctypes
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_CPU_INFO: Final = Path("/proc/cpuinfo")
_NAMES: Final = (
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "CPU revision",
)

# Bits of XCR0 (Intel's manual, volume 1, 13.1), and the features whose registers they are.
_AVX_STATE: Final = 1 << 1 | 1 << 2
_AVX512_STATE: Final = _AVX_STATE | 1 << 5 | 1 << 6 | 1 << 7
_TILE_STATE: Final = 1 << 17 | 1 << 18
_NEED_AVX: Final = frozenset({"fma", "fma4", "f16c", "xop", "vaes", "vpclmulqdq"})

# Linux's numbers, on x86-64.
_SYS_ARCH_PRCTL: Final = 158
_ARCH_GET_XCOMP_SUPP: Final = 0x1021
_ARCH_REQ_XCOMP_PERM: Final = 0x1023
_TILE_DATA: Final = 18


@dataclass(frozen=True, slots=True)
class Cpu:
    """A CPU under its operating system."""

    machine: str
    """The architecture, as `uname -m` calls it."""
    name: str
    """Vendor, family, model and stepping; empty where the system does not tell."""
    features: frozenset[str]
    """What a process may use, in the names of /proc/cpuinfo; empty where it does not tell."""


def this_cpu() -> Cpu:
    """Look at the CPU at hand. Asks Linux for AMX's tiles, which holds for the whole process."""
    machine = platform.machine()
    try:
        text = _CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    is_x86 = machine == "x86_64"
    states = _saved_states() if is_x86 else None
    return described(text, machine, states=states, has_tiles=is_x86 and _ask_for_tiles())


def described(text: str, machine: str, *, states: int | None, has_tiles: bool) -> Cpu:
    """Read /proc/cpuinfo's text; keep what all of its CPUs have and the system permits.

    `states` are the bits of XCR0, None where they are not known: then Linux is taken at its word,
    for it names no feature whose registers it does not save. `has_tiles`: AMX was granted.
    """
    fields = [
        (name.strip(), value.strip())
        for name, _, value in (line.partition(":") for line in text.splitlines())
    ]
    listed = [frozenset(value.split()) for name, value in fields if name in {"flags", "Features"}]
    features = frozenset.intersection(*listed) if listed else frozenset()
    # Cores of two kinds: each once, in the order of their numbers.
    names = dict.fromkeys(f"{name}={value}" for name, value in fields if name in _NAMES)
    usable = frozenset(_usable(features, states, has_tiles=has_tiles))
    return Cpu(machine, ", ".join(names), usable)


def _usable(features: Iterable[str], states: int | None, *, has_tiles: bool) -> list[str]:
    return [
        each
        for each in features
        if (states is None or not _state_of(each) & ~states)
        and (has_tiles or not each.startswith("amx"))
    ]


def _state_of(feature: str) -> int:
    """Return the bits of XCR0 without which the feature faults."""
    if feature.startswith("amx"):
        return _TILE_STATE
    if feature.startswith("avx512"):
        return _AVX512_STATE
    return _AVX_STATE if feature.startswith("avx") or feature in _NEED_AVX else 0


def _saved_states() -> int | None:
    """Return the register files that Linux saves; None before Linux 5.16, which cannot tell."""
    states = ctypes.c_uint64()
    failed = _arch_prctl(_ARCH_GET_XCOMP_SUPP, ctypes.addressof(states))
    return None if failed else states.value


def _ask_for_tiles() -> bool:
    return not _arch_prctl(_ARCH_REQ_XCOMP_PERM, _TILE_DATA)


def _arch_prctl(what: int, argument: int) -> int:
    call = ctypes.CDLL(None).syscall
    call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_ulong]
    call.restype = ctypes.c_long
    return int(call(_SYS_ARCH_PRCTL, what, argument))
