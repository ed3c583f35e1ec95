"""The tuner's memory where it is kept: a ConfigMap, or a file. Garbage in it stops nothing."""

import logging
from pathlib import Path

import pytest

from paceline_cli.local_state import running
from paceline_cli.place import memory_file, state_dir
from paceline_cli.up.warm_start_file import FileStore
from paceline_operator.errors import ApiError, NotLeadingError, WriteRefusedError
from paceline_operator.warm_start_map import FILE, NAME, ConfigMapStore
from paceline_testing.fake_cluster import FakeCluster
from paceline_tuner.service_spec import SLA
from paceline_tuner.warm_start import WarmStart
from paceline_tuner.warm_start_entry import EngineKey, WarmStartEntry
from paceline_tuner.warm_start_json import encode
from paceline_tuner.warm_start_store import StoreError


def a_book() -> WarmStart:
    key = EngineKey("tiny", "", 500, "float32", "1", "cpu", ("threads=4",))
    theta = (30.0, 2.0, 0.5, 2.0, 50.0)
    return WarmStart().add(
        WarmStartEntry(key, SLA(itl_p99_ms=300.0), theta, 256, (1.0,), 20, 400, 280.0, at=1e9)
    )


def a_store(cluster: FakeCluster, *, is_leading: bool = True) -> ConfigMapStore:
    def check() -> None:
        if not is_leading:
            raise NotLeadingError("another leads")

    return ConfigMapStore(cluster, "paceline-system", check)


async def test_what_was_saved_is_loaded() -> None:
    """By the next leader, from the same namespace."""
    cluster = FakeCluster()
    assert await a_store(cluster).load() == WarmStart()

    await a_store(cluster).save(a_book())

    assert await a_store(cluster).load() == a_book()
    assert cluster.writes == [f"apply ConfigMap/{NAME}"]
    assert cluster.objects["ConfigMap", NAME]["metadata"]["namespace"] == "paceline-system"


async def test_only_the_leader_writes() -> None:
    """Two writers of one memory would undo each other."""
    cluster = FakeCluster()

    with pytest.raises(StoreError, match="another leads"):
        await a_store(cluster, is_leading=False).save(a_book())

    assert cluster.writes == []


async def test_what_another_saved_meanwhile_is_not_lost() -> None:
    """The next save loads it first."""
    cluster = FakeCluster()
    await a_store(cluster).save(a_book())
    first, second = a_store(cluster), a_store(cluster)
    await first.load()
    await second.load()
    await second.save(WarmStart())

    with pytest.raises(StoreError, match="changed"):
        await first.save(a_book())
    await first.load()
    await first.save(a_book())

    assert await second.load() == a_book()


@pytest.mark.parametrize(
    "problem",
    [ApiError("apply", NAME, 0, "unreachable"), WriteRefusedError("apply", NAME, 403, "forbidden")],
    ids=["unreachable", "forbidden"],
)
async def test_a_cluster_that_says_no_is_a_store_error(problem: ApiError) -> None:
    """The tuner knows how to go on without its memory."""
    cluster = FakeCluster(refusals={"ConfigMap": problem})

    with pytest.raises(StoreError):
        await a_store(cluster).save(a_book())
    cluster.is_reachable = False
    with pytest.raises(StoreError):
        await a_store(cluster).load()


@pytest.mark.parametrize("data", [None, {}, {FILE: ""}, {"other": "x"}], ids=str)
async def test_a_config_map_without_a_book_is_an_empty_memory(data: dict[str, str] | None) -> None:
    """A person may have emptied it."""
    cluster = FakeCluster()
    await a_store(cluster).save(a_book())
    cluster.objects["ConfigMap", NAME]["data"] = data

    assert await a_store(cluster).load() == WarmStart()


async def test_garbage_is_dropped_with_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A broken entry costs itself, a broken document all of it; neither costs the tuner."""
    cluster = FakeCluster()
    await a_store(cluster).save(a_book())
    whole = encode(a_book())
    with caplog.at_level(logging.WARNING):
        cluster.objects["ConfigMap", NAME]["data"] = {
            FILE: whole.replace('"entries":[', '"entries":[{"theta":7},')
        }
        one_broken = await a_store(cluster).load()
        cluster.objects["ConfigMap", NAME]["data"] = {FILE: whole[:-20]}
        all_broken = await a_store(cluster).load()

    assert one_broken == a_book()
    assert all_broken == WarmStart()
    assert len(caplog.records) == 2
    assert all(NAME in record.getMessage() for record in caplog.records)


async def test_local_mode_keeps_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Made with its folder, replaced whole, and never taken for the state of a service."""
    path = memory_file({"XDG_STATE_HOME": str(tmp_path)})
    store = FileStore(path)
    assert await store.load() == WarmStart()

    await store.save(a_book())
    assert await store.load() == a_book()
    assert [found.name for found in path.parent.iterdir()] == ["memory.json"]
    assert running(state_dir({"XDG_STATE_HOME": str(tmp_path)})) == {}

    path.write_bytes(b"\xff{")
    assert await store.load() == WarmStart()
    assert str(path) in caplog.text


async def test_a_file_that_cannot_be_had_is_a_store_error(tmp_path: Path) -> None:
    """`paceline up` serves on a read-only disk too."""
    blocked = tmp_path / "tuner"
    blocked.write_text("no folder")

    with pytest.raises(StoreError):
        await FileStore(blocked / "memory.json").save(a_book())
    with pytest.raises(StoreError):
        await FileStore(tmp_path).load()
