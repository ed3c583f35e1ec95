"""Where the compiled ops come from: the cache, the compiler, the image, or nowhere."""

import os
import shutil
import subprocess
import sys
from ctypes import CDLL
from dataclasses import replace
from pathlib import Path

import pytest

from paceline_kernels.cpu import build, loading
from paceline_kernels.cpu.compile import CompileError, find_compiler
from paceline_kernels.cpu.cpu_features import Cpu, this_cpu
from paceline_kernels.cpu.levels import LEVELS
from paceline_kernels.cpu.loading import Places, load_library, places
from paceline_kernels.cpu.openmp import torchs_openmp
from paceline_kernels.cpu.stored import SUFFIX, load_stored, store
from paceline_kernels.kept_files import UntrustedError, claimed

NOBODY = 65534
NO_COMPILER = "no-such-compiler"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The machine's compiler, which does not optimise here, for the sake of time."""
    return a_compiler(tmp_path_factory.mktemp("hasty") / "cc", 'exec cc "$@" -O0')


def a_compiler(path: Path, script: str) -> str:
    """Make a command of a line of shell."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory, hasty: str) -> Path:
    """What an image ships for this architecture."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("image") / "native"
    build.build(folder, this_cpu().machine, hasty)
    return folder


@pytest.fixture(scope="module")
def library(shipped: Path) -> Path:
    """Any library of ours."""
    return max(shipped.iterdir())


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A folder that is not there yet."""
    return tmp_path / "cache"


@pytest.fixture
def where(cache: Path, hasty: str) -> Places:
    """A cache and a compiler, and no image."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    return Places(cache, compiler=hasty)


def only_file(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def test_ops_are_compiled_once(cache: Path, where: Places) -> None:
    """The second start finds what the first has kept."""
    first, second = load_library(where), load_library(where)

    assert (first.description.origin, second.description.origin) == ("compiled", "cached")
    assert first.description.level == second.description.level == "native"
    assert first.description.features == second.description.features != ()
    assert second.library is not None
    assert second.library.panel_width() > 0
    assert cache.stat().st_mode & 0o777 == 0o700


def test_another_cpu_or_compiler_compiles_anew(where: Places, tmp_path: Path) -> None:
    """Whatever the code depends on is part of the key."""
    cpu = this_cpu()
    other = replace(cpu, features=cpu.features | {"a_feature_of_tomorrow"})
    another = a_compiler(tmp_path / "cc", '[ "$1" = --version ] && echo another; exec cc "$@" -O0')

    origins = [
        load_library(at, of).description.origin
        for at, of in [
            (where, cpu),
            (where, other),
            (replace(where, compiler=another), cpu),
            (where, replace(cpu, name="another model")),
            (where, cpu),
        ]
    ]

    assert origins == ["compiled", "compiled", "compiled", "compiled", "cached"]


def test_a_damaged_library_is_compiled_anew(
    cache: Path, where: Places, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that was full, or a bit that has fallen over."""
    load_library(where)
    damaged = only_file(cache)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)

    assert load_library(where).description.origin == "compiled"
    assert "is damaged" in caplog.text
    assert load_library(where).description.origin == "cached"


def test_what_others_may_have_written_is_compiled_anew(
    cache: Path, where: Places, caplog: pytest.LogCaptureFixture
) -> None:
    """Code of another user would run as this one."""
    load_library(where)
    only_file(cache).chmod(0o666)

    assert load_library(where).description.origin == "compiled"
    assert "can be written to by others" in caplog.text


def test_a_cache_that_was_open_to_others_is_emptied(cache: Path, where: Places) -> None:
    """A volume's group rights are set anew for each pod: what lay in it may be anybody's."""
    load_library(where)
    cache.chmod(0o777)

    assert load_library(where).description.origin == "compiled"
    assert cache.stat().st_mode & 0o777 == 0o700
    assert load_library(where).description.origin == "cached"


@needs_root
def test_a_cache_of_somebody_else_is_not_used(
    cache: Path, where: Places, caplog: pytest.LogCaptureFixture
) -> None:
    """Its owner could exchange what lies in it at any time."""
    caplog.set_level("INFO")
    cache.mkdir()
    os.chown(cache, NOBODY, NOBODY)

    assert load_library(where).description.origin == "compiled"
    assert list(cache.iterdir()) == []
    assert f"belongs to user {NOBODY}" in caplog.text


@pytest.mark.parametrize("makes_file", [True, False], ids=["a file in the way", "no folder"])
def test_ops_work_without_a_cache(
    cache: Path, where: Places, caplog: pytest.LogCaptureFixture, makes_file: bool
) -> None:
    """A read-only root, or a user without a home: the log says once that nothing is kept."""
    caplog.set_level("INFO")
    cache.write_text("")

    loaded = load_library(replace(where, cache=cache / "below" if makes_file else None))

    assert loaded.description.origin == "compiled"
    assert loaded.library is not None
    assert caplog.text.count("is not kept") == 1


def test_a_library_of_another_user_is_not_loaded(tmp_path: Path, library: Path) -> None:
    """The rule by itself, file by file."""
    folder = tmp_path / "native"
    with claimed(folder, SUFFIX):
        store(folder, "key", library)
    stored = only_file(folder)

    assert isinstance(load_stored(folder, "key"), CDLL)
    assert load_stored(folder, "ke") is None
    aside = stored.rename(tmp_path / "aside")
    stored.symlink_to(aside)
    with pytest.raises(UntrustedError, match="symbolic link"):
        load_stored(folder, "key")
    stored.unlink()
    os.mkfifo(stored)
    with pytest.raises(UntrustedError, match="no plain file"):
        load_stored(folder, "key")
    stored.unlink()
    aside.rename(stored)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(UntrustedError, match="symbolic link"):
        load_stored(tmp_path / "link", "key")
    folder.chmod(0o770)
    with pytest.raises(UntrustedError, match="written to by others"):
        load_stored(folder, "key")


@needs_root
def test_a_library_that_was_given_away_is_not_loaded(tmp_path: Path, library: Path) -> None:
    """The owner counts, not only what is in it."""
    folder = tmp_path / "native"
    with claimed(folder, SUFFIX):
        store(folder, "key", library)
    os.chown(only_file(folder), NOBODY, NOBODY)

    with pytest.raises(UntrustedError, match=f"belongs to user {NOBODY}"):
        load_stored(folder, "key")


def test_a_cache_keeps_the_newest(tmp_path: Path, library: Path) -> None:
    """A developer's edits do not fill the disk; an older build of the same key goes at once."""
    folder = tmp_path / "native"
    with claimed(folder, SUFFIX):
        for number in range(20):
            store(folder, f"key{number:02}", library)
            os.utime(max(folder.iterdir()), (number, number))
        other = tmp_path / "other.so"
        other.write_bytes(b"another content")
        store(folder, "key19", other)

    names = sorted(path.name[:5] for path in folder.iterdir())

    assert names == [f"key{number:02}" for number in range(4, 20)]


def test_without_a_compiler_the_image_serves(shipped: Path) -> None:
    """The level is the best of this CPU, its library computes, and the log says why not more."""
    cpu = this_cpu()
    wanted = next(level for level in LEVELS if level.runs_on(cpu))

    loaded = load_library(Places(None, shipped, NO_COMPILER))

    assert (loaded.description.origin, loaded.description.level) == ("shipped", wanted.name)
    assert loaded.library is not None
    assert loaded.library.panel_width() > 0
    assert NO_COMPILER in str(loaded.description)


def test_the_best_shipped_level_that_can_be_trusted_is_taken(
    shipped: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An image may lack a level, or hold a damaged one: the next serves, below the last torch."""
    best, *others = (level for level in LEVELS if level.runs_on(this_cpu()))
    image = tmp_path / "native"
    shutil.copytree(shipped, image)
    next(image.glob(f"{loading.shipped_key(best)}-*")).write_bytes(b"not a library")

    loaded = load_library(Places(None, image, NO_COMPILER))

    assert loaded.description.level == (others[0].name if others else "")
    assert "is damaged" in caplog.text


def test_a_level_that_the_cpu_lacks_is_never_loaded(shipped: Path) -> None:
    """Torch's ops take its place, and a sentence says why."""
    old = Cpu("x86_64", "an old one", frozenset({"sse4_2", "popcnt", "avx"}))

    described, library = load_library(Places(None, shipped, NO_COMPILER), old)

    assert (described.origin, described.level, described.features) == ("torch", "", ())
    assert library is None
    assert "this CPU lacks abm, avx2, " in described.why


def test_an_image_without_builds_runs_on_torch(tmp_path: Path) -> None:
    """It says that it has none for this version."""
    described, library = load_library(Places(None, tmp_path / "none", NO_COMPILER))

    assert library is None
    assert described.origin == "torch"
    assert "has no build for this CPU and this version" in str(described)


def test_a_level_below_avx512_says_what_it_lacks(shipped: Path) -> None:
    """So that nobody wonders why such a machine is slower."""
    cpu = this_cpu()
    if not LEVELS[-2].runs_on(cpu):
        pytest.skip("needs AVX2")

    plain = replace(cpu, features=LEVELS[-2].features)
    described, _ = load_library(Places(None, shipped, NO_COMPILER), plain)

    assert described.level == "x86-64-v3"
    assert described.why.endswith("and this CPU has no AVX-512")


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"HOME": "/home/me"}, Places(Path("/home/me/.cache/paceline/native"))),
        ({"XDG_CACHE_HOME": "/caches"}, Places(Path("/caches/paceline/native"))),
        ({"PACELINE_NATIVE_CACHE_DIR": "/cache/native"}, Places(Path("/cache/native"))),
        ({"PACELINE_NATIVE_CACHE_DIR": ""}, Places(None)),
        (
            {"XDG_CACHE_HOME": "/caches", "PACELINE_NATIVE_DIR": "/image"},
            Places(Path("/caches/paceline/native"), Path("/image")),
        ),
    ],
    ids=["home", "XDG", "named", "none", "image"],
)
def test_settings_name_the_places(environment: dict[str, str], wanted: Places) -> None:
    """As docs/processes.md has it."""
    assert places(environment) == wanted


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    """The line of what it printed that tells the error is the reason."""
    fails = f'{sys.executable} -c \'import sys; print("oh"); sys.exit("out of paper")\''
    with pytest.raises(CompileError, match="out of paper"):
        find_compiler(fails)
    with pytest.raises(CompileError, match=NO_COMPILER):
        find_compiler(NO_COMPILER)
    silent = a_compiler(
        tmp_path / "cc", '[ "$1" = --version ] && exit; echo >&2 a.c: error: no; exit 1'
    )
    with pytest.raises(CompileError, match=r"a\.c: error: no"):
        find_compiler(silent).compile(tmp_path / "native.so")


def test_every_level_of_this_architecture_is_built(shipped: Path) -> None:
    """An image's build runs it, and anybody may read what it makes."""
    machine = this_cpu().machine
    names = {level.name for level in LEVELS if level.machine == machine}

    built = {path.name for path in shipped.iterdir()}

    assert len(built) == len(names)
    assert {loading.shipped_key(level) for level in LEVELS if level.machine == machine} == {
        name.rpartition("-")[0] for name in built
    }
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in shipped.iterdir())


def test_a_build_without_a_compiler_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An image's build must not go on without its ops."""
    monkeypatch.setenv("CC", NO_COMPILER)

    assert build.main([str(tmp_path / "out")]) == 1
    assert NO_COMPILER in caplog.text


OPENMP_OF_A_PROCESS = """
import sys
from pathlib import Path
from paceline_kernels.cpu.loading import Places, load_library
loaded = load_library(Places(None, Path(sys.argv[1]), sys.argv[2]))
assert loaded.library is not None
maps = Path("/proc/self/maps").read_text().split()
print(*sorted({path for path in maps if "gomp" in path or "iomp" in path or "libomp" in path}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "shipped"])
def test_one_openmp_serves_torch_and_us(shipped: Path, hasty: str, is_compiled: bool) -> None:
    """Two would be two pools of threads, and a thread that waits spins on the other's core."""
    compiler = hasty if is_compiled else NO_COMPILER
    command = [sys.executable, "-c", OPENMP_OF_A_PROCESS, str(shipped), compiler]

    mapped = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    assert mapped == [os.path.realpath(torchs_openmp() or "")]


def test_a_build_names_no_openmp_of_its_own(library: Path) -> None:
    """A system's libgomp would be loaded beside one that torch has under another name."""
    assert b"libgomp" not in library.read_bytes()
