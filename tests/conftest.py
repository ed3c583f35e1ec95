"""Fixtures for every part, and one guard."""

import gc
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

pytest_plugins = ["local_cluster.fixtures"]

ROOT = Path(__file__).parents[1]

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes that each take all cores are slower
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Without a GPU the kernels run in Triton's interpreter; this is read when triton is first imported.
# Torch is asked only where there may be one, for its import takes seconds.
if not (Path("/dev/nvidiactl").exists() and import_module("torch").cuda.is_available()):
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def no_log_tells_what_a_sidecar_was_told() -> Iterator[None]:
    """Read the logs of the test's sidecars at its end."""
    yield
    # A machine that only runs kernels has no sidecar to import.
    if kept := sys.modules.get("paceline_testing.kept_secrets"):
        kept.require_silence()


def pytest_configure() -> None:
    """Refuse to run where a folder of ours would hide the standard library's `operator`."""
    for folder in ("operator", "tests/operator"):
        if (ROOT / folder / "__init__.py").exists():
            msg = f"{folder}/__init__.py hides the standard library's `operator`: remove it"
            raise pytest.UsageError(msg)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in its own hook of this name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep in one process what shares something costly: the cluster, or a fixture of a module."""
    for item in items:
        if item.get_closest_marker("cluster") or item.get_closest_marker("node"):
            item.add_marker(pytest.mark.xdist_group("cluster"))
        elif _shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(ROOT))))


def pytest_collection_finish() -> None:
    """Keep all tests out of garbage collection: the engine collects often, and they are many."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Undo that: nanobind complains of objects that are left at the end."""
    gc.unfreeze()


def _shares_a_fixture(item: pytest.Item) -> bool:
    """A fixture of its module would be made once in every process that runs one of its tests."""
    fixtures = getattr(item, "_fixtureinfo", None)
    found = fixtures.name2fixturedefs.values() if fixtures is not None else ()
    return any(definitions[-1].scope == "module" for definitions in found)
