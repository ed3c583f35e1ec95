"""A watch that hears nothing any more is told, whatever it is that it does not hear."""

import asyncio
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_api.labels import MANAGED_BY, MANAGER, SERVICE_LABEL, Manifest
from paceline_operator import watch_probe
from paceline_operator.watch_probe import (
    BEHIND_AFTER_S,
    OWNED_KINDS,
    OWNED_PERIOD_S,
    PERIOD_S,
    SILENT_AFTER_S,
    WatchProbe,
)
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.services import a_live_service


@dataclass
class Heard:
    """`Watched`, of what a stream has brought."""

    services: dict[str, Manifest] = field(default_factory=dict)
    others: list[tuple[str, Manifest]] = field(default_factory=list)

    def keys(self) -> Iterable[str]:
        return [*self.services]

    def service(self, key: str) -> Manifest | None:
        return self.services.get(key)

    def children(self, key: str) -> Iterable[Manifest]:
        raise AssertionError(key)

    def pods(self, key: str) -> Iterable[Manifest]:
        raise AssertionError(key)

    def owned(self) -> Iterable[tuple[str, Manifest]]:
        return self.others


class World:
    """A cluster with services, a stream that can be cut, and the probe between them."""

    def __init__(self, *names: str) -> None:
        self.cluster, self.clock, self.heard = FakeCluster(), ManualClock(), Heard()
        self.is_streaming = True
        self.version = 1
        for name in names:
            self.change(name)
        self.probe = WatchProbe(self.cluster, (), self.heard, self.clock)

    def change(self, name: str) -> None:
        """Somebody writes a service."""
        self.version += 1
        raw = a_live_service(name)
        raw["metadata"]["resourceVersion"] = str(self.version)
        self.cluster.objects["InferenceService", name] = raw
        self._stream()

    def change_pod(self, name: str, **labels: str) -> None:
        """Something happens to a pod; with labels, to one that has other ones."""
        self.version += 1
        self.put_pod(name, **labels)
        self._stream()

    def put_pod(self, name: str, **labels: str) -> None:
        """Make it as it is now, without the stream."""
        self.cluster.objects["Pod", name] = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "resourceVersion": str(self.version),
                "labels": labels or {MANAGED_BY: MANAGER, SERVICE_LABEL: "quick"},
            }
        }

    def delete_pod(self, name: str) -> None:
        del self.cluster.objects["Pod", name]
        self._stream()

    def delete(self, name: str) -> None:
        del self.cluster.objects["InferenceService", name]
        self._stream()

    def reconnect(self) -> None:
        self.is_streaming = True
        self._stream()

    async def wait(self, seconds: float) -> None:
        """Let time pass, with a probe at its usual times and at the end."""
        while seconds > 0:
            self.clock.advance(min(seconds, PERIOD_S))
            seconds -= PERIOD_S
            await self.probe.try_once()

    def _stream(self) -> None:
        if self.is_streaming:
            objects = self.cluster.objects.items()
            self.heard.services = {
                f"default/{name}": deepcopy(one)
                for (kind, name), one in objects
                if kind == "InferenceService"
            }
            self.heard.others = [
                ("Pod", deepcopy(one))
                for (kind, _), one in objects
                if kind == "Pod" and SERVICE_LABEL in one["metadata"]["labels"]
            ]


async def test_a_quiet_cluster_is_well() -> None:
    """Nothing happens for hours, and nothing is missed."""
    world = World("quick")

    await world.wait(7200)

    assert world.probe.problem() == ""


async def test_an_api_server_that_is_gone_is_told() -> None:
    """With how long, and with what the last attempt met; and it is forgiven when it is back."""
    world = World("quick")
    world.cluster.is_reachable = False

    await world.wait(SILENT_AFTER_S)
    assert world.probe.problem() == ""
    await world.wait(1)
    assert world.probe.problem().startswith("the API server has not answered for 61 s: ")
    assert "unreachable" in world.probe.problem()

    world.cluster.is_reachable = True
    await world.probe.try_once()
    assert world.probe.problem() == ""


async def test_a_list_that_hangs_is_told_too() -> None:
    """No answer is none, whether or not the attempt has come to its end."""
    world = World("quick")

    world.clock.advance(SILENT_AFTER_S + 1)

    assert world.probe.problem() == "the API server has not answered for 61 s"


async def test_a_stream_that_is_cut_is_told_by_what_it_misses() -> None:
    """The API server answers, the watch does not: a changed object is the proof."""
    world = World("quick", "other")
    world.is_streaming = False
    await world.wait(3600)
    assert world.probe.problem() == ""

    world.change("quick")
    await world.wait(PERIOD_S)
    await world.wait(BEHIND_AFTER_S)
    assert world.probe.problem() == ""
    await world.wait(1)

    assert world.probe.problem() == (
        "the watch has missed what happened to default/quick 121 s ago"
    )
    world.reconnect()
    await world.probe.try_once()
    assert world.probe.problem() == ""


async def test_new_and_deleted_services_are_missed_as_well() -> None:
    for act in (World.change, World.delete):
        world = World("quick")
        world.is_streaming = False
        act(world, "fresh" if act is World.change else "quick")

        await world.wait(PERIOD_S + BEHIND_AFTER_S + 1)

        assert "the watch has missed" in world.probe.problem()


async def test_a_busy_service_that_is_always_ahead_is_no_trouble() -> None:
    """Each list sees a version that is on its way; the one before has come."""
    world = World("quick")
    for _ in range(100):
        world.is_streaming = False
        world.change("quick")
        await world.wait(PERIOD_S)
        assert world.probe.problem() == ""
        world.reconnect()


async def test_a_pod_that_has_vanished_is_not_believed_for_ever() -> None:
    """A stream that began anew told of what was there; of what had gone, nobody spoke."""
    world = World("quick")
    world.change_pod("quick-1")
    await world.wait(OWNED_PERIOD_S)
    world.is_streaming = False
    world.delete_pod("quick-1")

    await world.wait(2 * OWNED_PERIOD_S + BEHIND_AFTER_S)

    assert world.probe.missed().startswith("the watch has missed what happened to Pod default/")
    world.reconnect()
    await world.wait(OWNED_PERIOD_S)
    assert world.probe.missed() == ""


async def test_many_children_are_listed_more_seldom() -> None:
    """Six thousand every two minutes."""
    world = World("quick")
    for number in range(6000):
        world.put_pod(f"quick-{number}")
    world.reconnect()
    await world.wait(OWNED_PERIOD_S)
    before = world.cluster.num_lists

    await world.wait(600)

    owned = world.cluster.num_lists - before - 600 / PERIOD_S
    assert owned == 5 * len(OWNED_KINDS)


async def test_what_only_looks_like_ours_is_not_missed() -> None:
    """It carries the manager's label and no service's: the watch drops it."""
    world = World("quick")
    world.change_pod("stray", **{MANAGED_BY: MANAGER})

    await world.wait(3600)

    assert world.probe.missed() == ""


async def test_an_api_server_that_is_gone_is_no_fault_of_the_watch() -> None:
    """A restart of the operator would not bring it back."""
    world = World("quick")
    world.cluster.is_reachable = False

    await world.wait(3600)

    assert world.probe.problem()
    assert world.probe.missed() == ""


@given(steps=st.lists(st.sampled_from(["change", "delete", "cut", "reconnect", "wait"])))
async def test_a_stream_that_runs_is_never_accused(steps: list[str]) -> None:
    """Whatever happened before, soon after it runs again nothing is missed."""
    world = World("quick")
    for step in steps:
        match step:
            case "change":
                world.change("quick")
            case "delete" if ("InferenceService", "quick") in world.cluster.objects:
                world.delete("quick")
            case "cut":
                world.is_streaming = False
            case "reconnect":
                world.reconnect()
            case _:
                await world.wait(40)

    world.reconnect()
    await world.probe.try_once()

    assert world.probe.problem() == ""


async def test_a_start_waits_for_all_that_was_there_and_for_nothing_newer() -> None:
    """A service and a pod come late; what comes up meanwhile may come later still."""
    world = World()
    world.is_streaming = False
    world.change("quick")
    world.change_pod("quick-1")
    heard = asyncio.create_task(world.probe.until_heard())
    await _lists(world, 1)
    assert not heard.done()

    world.reconnect()
    world.is_streaming = False
    world.change("newest")

    await asyncio.wait_for(heard, 60)


async def test_a_start_does_not_wait_for_what_is_gone() -> None:
    """It was there at the first list, and the watch began after its end."""
    world = World()
    world.is_streaming = False
    world.change_pod("quick-1")
    heard = asyncio.create_task(world.probe.until_heard())
    await _lists(world, 1)
    world.delete_pod("quick-1")

    world.clock.advance(PERIOD_S)

    await asyncio.wait_for(heard, 60)


async def test_a_start_waits_for_an_api_server_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_probe, "_LONGEST_PAUSE_S", 0.01)
    world = World("quick")
    world.cluster.is_reachable = False
    heard = asyncio.create_task(world.probe.until_heard())
    await _lists(world, 1)
    assert not heard.done()

    world.cluster.is_reachable = True

    await asyncio.wait_for(heard, 60)


async def _lists(world: World, wanted: int) -> None:
    """Wait until so many lists of all kinds, or failed ones, have been asked for."""
    async with asyncio.timeout(60):
        while world.cluster.num_lists < wanted * (1 + len(OWNED_KINDS)):  # noqa: ASYNC110 - a fake counts
            await asyncio.sleep(0.01)
