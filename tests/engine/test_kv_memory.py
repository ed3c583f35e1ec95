"""How much memory the KV cache gets by default, and what a container leaves free."""

from pathlib import Path

import pytest
import torch

from paceline_engine.errors import DoesNotFit
from paceline_engine.hardware.devices import CPU_KV_BYTES
from paceline_engine.loading.memory import DeviceMemory, kv_bytes, within_container
from paceline_engine.settings import Settings

GIB = 1 << 30
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def _settings(asked: int | None = None) -> Settings:
    return Settings(
        model_uri="file:///models/any", kv_cache_memory_fraction=0.9375, kv_cache_bytes=asked
    )


@pytest.mark.parametrize(
    ("device", "free", "wanted"),
    [
        (CPU, 15 * GIB, CPU_KV_BYTES),
        (CPU, 3 * GIB, GIB),
        (CPU, 5 * GIB // 2, GIB // 2),
        (CPU, GIB, 0),
        (GPU, 15 * GIB, 13 * GIB),
    ],
)
def test_a_full_step_and_the_reserved_share_stay_free(
    device: torch.device, free: int, wanted: int
) -> None:
    """Else a container on a CPU is killed as soon as requests have filled the cache."""
    memory = DeviceMemory(total_bytes=16 * GIB, free_bytes=free)

    assert kv_bytes(_settings(), device, memory, step_bytes=GIB) == wanted


def test_a_size_that_is_asked_for_is_kept_or_refused() -> None:
    """It is never made smaller in silence."""
    memory = DeviceMemory(total_bytes=4 * GIB, free_bytes=2 * GIB)

    assert kv_bytes(_settings(2 * GIB), CPU, memory, step_bytes=GIB) == 2 * GIB
    with pytest.raises(DoesNotFit, match=r"3\.00 GiB .*but after the weights only 2\.00 GiB"):
        kv_bytes(_settings(3 * GIB), CPU, memory, step_bytes=GIB)


VERSION_2 = {
    "proc/self/cgroup": "0::/",
    "sys/fs/cgroup/memory.max": "2000",
    "sys/fs/cgroup/memory.current": "1200",
    "sys/fs/cgroup/memory.stat": "anon 900\ninactive_file 100\n",
}
VERSION_1 = {
    "proc/self/cgroup": "4:memory:/docker/a\n2:cpu,cpuacct:/docker/a",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "1200",
    "sys/fs/cgroup/memory/memory.stat": "cache 300\ninactive_file 1\ntotal_inactive_file 100\n",
}
PARENT = VERSION_2 | {
    "proc/self/cgroup": "0::/engine",
    "sys/fs/cgroup/engine/memory.max": "max",
    "sys/fs/cgroup/engine/memory.current": "700",
}
NO_LIMIT_1 = {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    "files", [VERSION_2, VERSION_1, PARENT], ids=["version 2", "version 1", "parent"]
)
def test_the_limit_of_the_container_counts(tmp_path: Path, files: dict[str, str]) -> None:
    """Files that the kernel may drop are free."""
    _write(tmp_path, files)

    assert within_container(DeviceMemory(9000, 8000), tmp_path) == DeviceMemory(2000, 900)
    assert within_container(DeviceMemory(9000, 300), tmp_path) == DeviceMemory(2000, 300)


@pytest.mark.parametrize(
    "files",
    [
        {},
        VERSION_2 | {"sys/fs/cgroup/memory.max": "max"},
        VERSION_1 | NO_LIMIT_1,
    ],
    ids=["no cgroup", "no limit", "no limit, version 1"],
)
def test_without_a_limit_the_host_counts(tmp_path: Path, files: dict[str, str]) -> None:
    """Version 1 gives the largest number it knows."""
    _write(tmp_path, files)

    assert within_container(DeviceMemory(9000, 8000), tmp_path) == DeviceMemory(9000, 8000)
