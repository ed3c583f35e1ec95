"""What one pod has compiled, the next one finds; what cannot be trusted is compiled anew."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline_kernels import variant_cache
from paceline_kernels.variant_cache import VariantCache

COMPILES = Path(__file__).with_name("kept_variants.py")
TESTS = COMPILES.parents[1]
FILES = {"k.cubin": b"\x7fELF" + bytes(range(256)), "k.json": b"{}", "k.ptx": b".version 9"}
KEPT = {"k.cubin", "k.json"}


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has a folder that outlives its pods, and hears each sentence anew."""
    folder = tmp_path / "claim" / "triton"
    monkeypatch.setenv("PACELINE_VARIANT_CACHE_DIR", str(folder))
    variant_cache._warn_once.cache_clear()
    return folder


@pytest.fixture
def a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What follows runs in a pod of this name, which begins with an empty folder of its own."""
    return lambda name: monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / name))


def compile_into(cache: VariantCache) -> None:
    """Put files as Triton does: one by one, then all as a group."""
    group = {name: cache.put(content, name) for name, content in FILES.items()}
    cache.put_group("k.json", group)


def found(key: str = "KEY") -> dict[str, bytes]:
    group = VariantCache(key).get_group("k.json") or {}
    return {name: Path(at).read_bytes() for name, at in group.items()}


def test_what_a_pod_has_compiled_the_next_one_finds(
    a_pod: Callable[[str], None], tmp_path: Path
) -> None:
    """What a launch needs, under its own key; from then on it is in the pod's own folder."""
    a_pod("first")
    compile_into(VariantCache("KEY"))
    assert found() == FILES

    a_pod("second")
    assert found("ANOTHER") == {}
    assert found() == {name: FILES[name] for name in KEPT}
    assert set(KEPT) < {path.name for path in (tmp_path / "second" / "KEY").iterdir()}


def test_without_a_folder_nothing_is_kept(
    a_pod: Callable[[str], None], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor while somebody dumps or overrides kernels by hand."""
    a_pod("first")
    compile_into(VariantCache("DUMPED", dump=True))
    monkeypatch.delenv("PACELINE_VARIANT_CACHE_DIR")
    compile_into(VariantCache("KEY"))

    assert found() == FILES
    assert not kept.exists()


@pytest.mark.parametrize("damage", [lambda whole: whole[:0], lambda whole: whole[:-7]])
def test_a_file_that_was_cut_short_is_compiled_anew(
    damage: Callable[[bytes], bytes],
    a_pod: Callable[[str], None],
    kept: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A node may crash before its disk has what a rename promises."""
    a_pod("first")
    compile_into(VariantCache("KEY"))
    (file,) = kept.iterdir()
    file.write_bytes(damage(file.read_bytes()))

    a_pod("second")
    assert found() == {}
    assert "compiled anew: it is damaged" in caplog.text
    compile_into(VariantCache("KEY"))
    a_pod("third")
    assert found().keys() == KEPT


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_can_write_to_is_not_loaded(
    what: str, a_pod: Callable[[str], None], kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever exchanges a kernel computes in its place."""
    a_pod("first")
    compile_into(VariantCache("KEY"))
    (file,) = kept.iterdir()
    (kept if what == "folder" else file).chmod(0o777)

    a_pod("second")
    assert found() == {}
    assert "can be written to by others" in caplog.text
    compile_into(VariantCache("KEY"))
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    a_pod("third")
    assert found().keys() == KEPT


def test_a_folder_that_cannot_be_made_is_done_without(
    a_pod: Callable[[str], None], kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so once."""
    kept.parent.parent.joinpath("claim").write_text("a file")
    a_pod("first")
    for key in "ABC":
        compile_into(VariantCache(key))
        assert found(key) == FILES

    assert caplog.text.count("compiled variants are not kept") == 1


def test_a_folder_keeps_what_was_used_last(
    a_pod: Callable[[str], None], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new version compiles every kernel under new keys; the old ones go in time."""
    monkeypatch.setattr(variant_cache, "_KEPT", 8)
    a_pod("first")
    for number in range(8):
        compile_into(VariantCache(f"KEY{number}"))
        os.utime(kept / f"KEY{number}.variant", (number, number))
    a_pod("second")
    assert found("KEY0").keys() == KEPT

    compile_into(VariantCache("KEY8"))

    left = {path.stem for path in kept.iterdir()}
    assert left == {"KEY8", "KEY0", "KEY7", "KEY6", "KEY5", "KEY4"}


def run(way: str, gpu: str, pod: Path, kept: Path) -> dict[str, Any]:
    """Compile or launch in a process of its own, with another order of sets and dictionaries."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {
        "PYTHONPATH": os.pathsep.join((str(TESTS), environment.get("PYTHONPATH", ""))),
        "PYTHONHASHSEED": str(len(pod.name)),
        "TRITON_CACHE_MANAGER": "paceline_kernels.variant_cache:VariantCache",
        "TRITON_CACHE_DIR": str(pod),
        "PACELINE_VARIANT_CACHE_DIR": str(kept),
    }
    command = [sys.executable, str(COMPILES), way, gpu]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_a_pod_loads_what_was_compiled_without_a_gpu(tmp_path: Path, kept: Path) -> None:
    """Triton's keys name the compute capability and nothing else of the machine."""
    ahead = run("ahead", "sm_90", tmp_path / "build", kept)
    served = run("serve", "sm_90", tmp_path / "pod", kept)
    elsewhere = run("serve", "sm_100", tmp_path / "another pod", kept)

    assert ahead["compiled"] == len(ahead["kernels"]) > 3
    assert served == {"kernels": ahead["kernels"], "compiled": 0}
    assert elsewhere["compiled"] == ahead["compiled"]
    assert len(list(kept.iterdir())) == 2 * ahead["compiled"]
