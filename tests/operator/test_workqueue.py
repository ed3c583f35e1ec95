"""Each key waits once and has one worker."""

import asyncio

from paceline_operator.workqueue import WorkQueue
from paceline_testing.clock import ManualClock


async def test_a_key_added_twice_is_worked_on_once() -> None:
    """A burst of events is one reconciliation."""
    queue = WorkQueue(ManualClock())
    queue.add("a")
    queue.add("b")
    queue.add("a")

    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert queue.depth() == 0


async def test_a_key_added_while_worked_on_comes_again_afterwards() -> None:
    """What changed meanwhile is seen, and never by two workers at once."""
    queue = WorkQueue(ManualClock())
    queue.add("a")
    await queue.get()
    queue.add("a")
    assert queue.depth() == 0

    queue.done("a")

    assert await queue.get() == "a"


async def test_a_failed_key_comes_back_later_each_time() -> None:
    """Errors must not become a storm."""
    queue = WorkQueue(ManualClock())
    delays = []
    for _ in range(12):
        queue.add("a")
        await queue.get()
        delays.append(queue.failed("a"))

    assert delays[:3] == [0.2, 0.4, 0.8]
    assert delays[-1] == 60.0
    queue.forget("a")


async def test_success_ends_the_backing_off() -> None:
    """The next error starts from the beginning."""
    queue = WorkQueue(ManualClock())
    for _ in range(5):
        queue.add("a")
        await queue.get()
        queue.failed("a")
    queue.add("a")
    await queue.get()
    queue.done("a")
    queue.add("a")
    await queue.get()

    assert queue.failed("a") == 0.2
    queue.forget("a")


async def test_a_key_can_be_due_later() -> None:
    """The periodic look, and the wait after an error."""
    queue = WorkQueue(ManualClock())
    queue.add_after("a", 0.0)

    assert await asyncio.wait_for(queue.get(), timeout=30) == "a"


async def test_a_waiting_worker_wakes() -> None:
    """`get` blocks until there is something to do."""
    queue = WorkQueue(ManualClock())
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not waiting.done()

    queue.add("a")

    assert await asyncio.wait_for(waiting, timeout=30) == "a"


async def test_the_oldest_age_is_that_of_the_first_key() -> None:
    """A worker that hangs shows itself."""
    clock = ManualClock()
    queue = WorkQueue(clock)
    assert queue.oldest_age_s() == 0.0

    queue.add("a")
    clock.advance(3)
    queue.add("b")
    clock.advance(4)

    assert queue.oldest_age_s() == 7.0


async def test_what_comes_by_itself_does_not_end_the_wait_after_an_error() -> None:
    """A round every five seconds would otherwise make a refused object a storm."""
    queue = WorkQueue(ManualClock())
    queue.add("a")
    await queue.get()
    queue.failed("a")

    queue.nudge("a")
    queue.nudge("b")

    assert await queue.get() == "b"
    assert queue.depth() == 0
    queue.add("a")  # an event ends it: perhaps somebody has mended what was wrong
    assert await queue.get() == "a"
    queue.forget("a")


async def test_without_an_error_a_nudge_is_as_good_as_an_event() -> None:
    queue = WorkQueue(ManualClock())
    queue.add_after("a", 60.0)

    queue.nudge("a")

    assert await queue.get() == "a"
    queue.done("a")


async def test_what_the_api_server_asks_to_wait_is_waited() -> None:
    """News does not cut it short, even what came while the key was worked on."""
    clock = ManualClock()
    queue = WorkQueue(clock)
    queue.add("a")
    await queue.get()
    queue.add("a")

    assert queue.failed("a", not_before_s=30.0) == 30.0

    queue.add("a")
    assert queue.depth() == 0
    clock.advance(30)
    queue.add("a")
    assert queue.depth() == 1
    queue.forget("a")


async def test_nobody_waits_longer_than_the_longest_pause() -> None:
    """An API server's wish of an hour would leave a service alone for that long."""
    queue = WorkQueue(ManualClock())
    queue.add("a")
    await queue.get()

    assert queue.failed("a", not_before_s=3600.0) == 60.0
    queue.forget("a")


async def test_urgent_keys_go_first_and_starve_nobody() -> None:
    """A thousand new specs, and a pod that has just become ready."""
    queue = WorkQueue(ManualClock())
    for name in ("calm 1", "calm 2"):
        queue.add(name)
    for number in range(5):
        queue.add(f"new {number}", is_urgent=True)

    taken = [await queue.get() for _ in range(7)]

    assert taken == ["new 0", "new 1", "new 2", "calm 1", "new 3", "new 4", "calm 2"]
    assert not queue.has_urgent()


async def test_an_urgent_key_that_is_worked_on_is_urgent_again_afterwards() -> None:
    """Its spec changed meanwhile."""
    queue = WorkQueue(ManualClock())
    queue.add("a")
    await queue.get()
    queue.add("b")
    queue.add("a", is_urgent=True)
    is_waiting = queue.has_urgent()

    queue.done("a")

    assert not is_waiting
    assert queue.has_urgent()
    assert [await queue.get(), await queue.get()] == ["a", "b"]


async def test_a_key_that_waits_becomes_urgent() -> None:
    """It waited for news of its pods when its spec changed."""
    queue = WorkQueue(ManualClock())
    for name in ("a", "b"):
        queue.add(name)

    queue.add("b", is_urgent=True)

    assert [await queue.get(), await queue.get()] == ["b", "a"]


async def test_news_of_a_held_key_does_not_lose_it() -> None:
    """The API server asked for a pause; a pod's event comes in it, and is seen after it."""
    clock = ManualClock()
    queue = WorkQueue(clock)
    queue.add("a")
    await queue.get()
    queue.failed("a", not_before_s=0.05)

    queue.add_after("a", 0)
    for _ in range(3):
        await asyncio.sleep(0)  # it is over, and the pause is not
    clock.advance(1.0)

    async with asyncio.timeout(30):
        assert await queue.get() == "a"
