"""A watch that has ended is told; one that begins anew is not."""

import asyncio

from paceline_operator.watch_pace import Backoffs
from paceline_operator.watch_tasks import WatchTasks


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_watch_that_ended_is_told_and_one_that_begins_anew_is_not() -> None:
    """Kopf begins a watch anew when its definition changes: it is missing for a moment."""
    tasks = WatchTasks()
    watch = asyncio.create_task(_for_ever(), name="watcher for pods.v1@ml")
    assert tasks.ended() == ""

    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    assert tasks.ended() == ""
    again = asyncio.create_task(_for_ever(), name="watcher for pods.v1@ml")
    assert tasks.ended() == ""
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)
    assert [tasks.ended(), tasks.ended()] == ["", "watcher for pods.v1@ml"]


def test_a_list_or_watch_is_tried_for_ever_and_never_in_a_storm() -> None:
    """Kopf gives up with its last pause, and the operator would be deaf from then on."""
    pauses = Backoffs()
    first = [pause for pause, _ in zip(pauses, range(100), strict=False)]

    assert len(first) == 100
    assert first == sorted(first)
    assert first[0] >= 0.5
    assert first[-1] == 30.0
    assert next(iter(pauses)) == first[0]
