"""Which builds of the ops a CPU may run, by what its /proc/cpuinfo says."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from paceline_kernels.cpu.compile import NATIVE
from paceline_kernels.cpu.cpu_features import Cpu, described, this_cpu
from paceline_kernels.cpu.levels import LEVELS, Level, decisive_features

CPUS = Path(__file__).parent / "cpus"
SAVED = 0b111 | 0b111 << 5  # x87, SSE and AVX; AVX-512's three
TILES = 0b11 << 17
BEST = {
    "zen-2": "x86-64-v3",
    "zen-3": "x86-64-v3",
    "zen-4": "x86-64-v4-bf16",
    "zen-5": "x86-64-v4-bf16",
    "skylake-sp": "x86-64-v4",
    "ice-lake": "x86-64-v4-vnni",
    "sapphire-rapids": "x86-64-v4-amx",
    "alder-lake": "x86-64-v3-vnni",
    "sandy-bridge": None,
    "cortex-a76": "armv8-a",
}


def cpu_called(
    name: str, *, states: int | None = SAVED | TILES, has_tiles: bool = True, extra: str = ""
) -> Cpu:
    machine = "aarch64" if name == "cortex-a76" else "x86_64"
    text = (CPUS / f"{name}.txt").read_text() + extra
    return described(text, machine, states=states, has_tiles=has_tiles)


def best_of(cpu: Cpu) -> str | None:
    return next((level.name for level in LEVELS if level.runs_on(cpu)), None)


@pytest.mark.parametrize(("name", "level"), BEST.items(), ids=BEST)
def test_a_cpu_gets_the_best_level_that_it_has_all_features_of(
    name: str, level: str | None
) -> None:
    """One feature too many is an illegal instruction; a Sandy Bridge runs on torch's ops."""
    assert best_of(cpu_called(name)) == level


@pytest.mark.parametrize(
    ("states", "has_tiles", "level"),
    [
        (SAVED | TILES, False, "x86-64-v4-bf16"),
        (SAVED, True, "x86-64-v4-bf16"),
        (0b111, True, "x86-64-v3-vnni"),
        (0b11, True, None),
        (None, True, "x86-64-v4-amx"),
        (None, False, "x86-64-v4-bf16"),
    ],
    ids=[
        "tiles not granted",
        "no tiles",
        "no AVX-512",
        "no AVX",
        "an old Linux names what it saves",
        "an old Linux grants no tiles",
    ],
)
def test_registers_that_the_system_does_not_save_are_not_used(
    states: int | None, has_tiles: bool, level: str | None
) -> None:
    """The CPU is a Sapphire Rapids, which has all of them."""
    assert best_of(cpu_called("sapphire-rapids", states=states, has_tiles=has_tiles)) == level


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_a_level_that_lacks_one_feature_is_not_run(level: Level) -> None:
    """Each feature counts, not only the one that gave the level its name."""
    assert level.runs_on(Cpu(level.machine, "", level.features))
    for feature in level.features:
        assert not level.runs_on(Cpu(level.machine, "", level.features - {feature}))
    assert not level.runs_on(Cpu("riscv64", "", level.features))


def test_what_only_some_cores_have_is_not_used() -> None:
    """A process may run on any core of a machine that mixes them."""
    little = (CPUS / "alder-lake.txt").read_text()

    cpu = cpu_called("zen-5", extra="\n" + little)

    assert best_of(cpu) == "x86-64-v3-vnni"
    assert "AMD EPYC" in cpu.name
    assert "i7-1255U" in cpu.name


def test_without_cpuinfo_nothing_is_known() -> None:
    """As in a container without /proc: no level is safe."""
    cpu = described("", "x86_64", states=SAVED, has_tiles=False)

    assert (cpu.name, cpu.features, best_of(cpu)) == ("", frozenset(), None)


def test_the_features_that_matter_are_told_strongest_first() -> None:
    """For a person, who does not want all of them."""
    assert decisive_features(cpu_called("alder-lake").features) == ("avx_vnni", "avx2", "fma")


MACROS = {
    "avx2": "__AVX2__",
    "fma": "__FMA__",
    "f16c": "__F16C__",
    "avx512f": "__AVX512F__",
    "avx512bw": "__AVX512BW__",
    "avx512vl": "__AVX512VL__",
    "avx512_vnni": "__AVX512VNNI__",
    "avx512_bf16": "__AVX512BF16__",
    "avx_vnni": "__AVXVNNI__",
    "amx_tile": "__AMX_TILE__",
    "amx_bf16": "__AMX_BF16__",
    "amx_int8": "__AMX_INT8__",
}


def macros(*options: str) -> set[str]:
    """What the compiler defines, and so may use, under these options."""
    command = ["cc", *options, "-dM", "-E", "-x", "c", "/dev/null"]
    defined = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {line.split()[1] for line in defined.splitlines()}


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
@pytest.mark.parametrize(
    "level",
    [level for level in LEVELS if level.machine == platform.machine()],
    ids=lambda level: level.name,
)
def test_the_compilers_options_allow_what_the_level_names_and_no_more(level: Level) -> None:
    """Else a build would hold instructions that nobody looked for."""
    allowed = macros(*level.options)

    for feature, macro in MACROS.items():
        assert (macro in allowed) == (feature in level.features), feature


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_the_compiler_sees_what_we_see_of_this_cpu() -> None:
    """It asks the CPU itself: whatever it may use here, /proc/cpuinfo must have named."""
    cpu = this_cpu()

    allowed = macros(*NATIVE)

    for feature, macro in MACROS.items():
        if macro in allowed and not feature.startswith("amx"):
            assert feature in cpu.features
