"""The scenes, one after the other on one service: each returns what its clients saw."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from chaos.streams import PROMPTS
from overload.asking import Asked, ask, keep_asking
from overload.misbehaving import attackers, strangers
from overload.served import BATCH, Part, Served

BURST: Final = 200
TIMES_CAPACITY: Final = 10
NUM_ATTACKERS: Final = 10
_EACH_KIND: Final = 4
_HONEST: Final = 4
_ROUND_S: Final = 15.0
_SETTLE_S: Final = 120.0
_HELD: Final = ("paceline_in_flight_requests", "vllm:num_requests_running")


@dataclass(frozen=True, slots=True)
class Sample:
    """One second of the flood."""

    at_s: float
    engine_mib: float
    sidecar_mib: float


@dataclass(frozen=True, slots=True)
class Scene:
    """What one scene showed."""

    name: str
    began_at: float
    seconds: float
    """Of its load; what ended later does not count into its rate."""
    asked: Sequence[Asked]
    notes: tuple[str, ...] = ()
    samples: Sequence[Sample] = ()
    is_interleaved: bool = False
    """Whether it went on in turns with another: then it has no rate."""
    left: str = ""
    """What it left behind in the service; empty where everything was free again."""


@dataclass(slots=True)
class Timer:
    """Over after so many seconds."""

    seconds: float
    began_at: float = field(default_factory=time.monotonic)

    def is_over(self) -> bool:
        """Whether they have passed."""
        return time.monotonic() - self.began_at >= self.seconds


async def quiet(served: Served) -> list[Asked]:
    """Ask each prompt alone. Raises `RuntimeError` where one fails."""
    asked = [await ask(served.port, number) for number in range(len(PROMPTS))]
    if any(one.error for one in asked):
        raise RuntimeError(f"the quiet service fails: {asked}")
    return asked


async def capacity(served: Served, seconds: float) -> Scene:
    """A few more clients than there are rows, each asking again at once."""
    timer = Timer(seconds)
    asked = await keep_asking(served.port, BATCH + BATCH // 4, timer.is_over)
    return await _scene("capacity", timer, asked, served)


def steady_rps(full: Scene) -> float:
    """Return what completed a second once the first answer was there: until then rows filled."""
    ends = sorted(one.ended_at for one in full.asked if not one.error)
    until = full.began_at + full.seconds
    return sum(ends[0] < end <= until for end in ends) / (until - ends[0])


async def burst(served: Served) -> Scene:
    """So many requests at one instant, then silence."""
    timer = Timer(0.0)
    asked = await asyncio.gather(
        *(ask(served.port, number % len(PROMPTS)) for number in range(BURST))
    )
    return await _scene(f"{BURST} at one instant, then silence", timer, asked, served)


async def flood(served: Served, rate_rps: float, seconds: float, idle_ttft_s: float) -> Scene:
    """Many times what can be served, open-loop; then one at a time until all is as before."""
    timer, asked, samples = Timer(seconds), list[Asked](), list[Sample]()

    async def one(number: int) -> None:
        asked.append(await ask(served.port, number % len(PROMPTS)))

    async def sample() -> None:
        while not timer.is_over():
            memory = [served.memory_mib(part) for part in ("engine", "sidecar")]
            samples.append(Sample(time.monotonic() - timer.began_at, *memory))
            await asyncio.sleep(1.0)

    async with asyncio.TaskGroup() as group:
        group.create_task(sample())
        number = 0
        while not timer.is_over():
            due = (time.monotonic() - timer.began_at) * rate_rps
            while number < due:
                group.create_task(one(number))
                number += 1
            await asyncio.sleep(0.005)
    over_at = timer.began_at + seconds
    recovery_s = await _recovery(served, over_at, within_s=2 * idle_ttft_s)
    name = f"{TIMES_CAPACITY} times the capacity for {seconds / 60:g} min"
    note = f"offered {number / seconds:.1f}/s; first tokens as before {recovery_s:.1f} s after it"
    return replace(await _scene(name, timer, asked, served, (note,)), samples=samples)


async def misbehaving(served: Served, seconds: float) -> Scene:
    """Honest clients beside some that vanish, read slowly, and send half."""
    timer = Timer(seconds)
    asked, came = await asyncio.gather(
        keep_asking(served.port, _HONEST, timer.is_over),
        strangers(served.port, _EACH_KIND, timer.is_over, seed=1),
    )
    name = "beside clients that vanish, read slowly, send half"
    return await _scene(name, timer, asked, served, (f"{came} of those",))


async def kill(served: Served, part: Part) -> Scene:
    """Kill a process under load, and look when clients hear of it and when it serves again."""
    timer, is_over = Timer(0.0), asyncio.Event()
    load = asyncio.create_task(keep_asking(served.port, _HONEST, is_over.is_set, pause_s=0.05))
    await asyncio.sleep(5.0)
    killed_at = served.kill(part)
    first = await ask(served.port, 0)
    back_s = await served.until_ready()
    await asyncio.sleep(5.0)
    is_over.set()
    asked = await load
    told = [one.ended_at - killed_at for one in asked if one.began_at < killed_at < one.ended_at]
    got = first.status or "no connection"
    notes = (
        f"those in flight heard of it within {1e3 * max(told, default=0.0):.0f} ms",
        f"the next request got {got} after {1e3 * (first.ended_at - killed_at):.0f} ms",
        f"ready again after {back_s:.1f} s",
    )
    return await _scene(f"the {part} is killed", timer, asked, served, notes)


async def attacked(served: Served, rounds: int) -> tuple[Scene, Scene]:
    """Honest clients alone and beside attackers, in turns: both scenes."""
    alone, beside, statuses = list[Asked](), list[Asked](), list[int]()
    each = Timer(rounds * _ROUND_S)
    for number in range(rounds):
        quiet = Timer(_ROUND_S)
        alone += await keep_asking(served.port, _HONEST, quiet.is_over, pause_s=0.1)
        loud = Timer(_ROUND_S)
        honest, seen = await asyncio.gather(
            keep_asking(served.port, _HONEST, loud.is_over, pause_s=0.1),
            attackers(served.port, NUM_ATTACKERS, _ROUND_S, seed=100 * number),
        )
        beside += honest
        statuses += seen
    counts = ", ".join(f"{statuses.count(one)} of {one or 'none'}" for one in sorted({*statuses}))
    beside_note = f"attackers' statuses: {counts}"
    name = f"the same beside {NUM_ATTACKERS} attackers"
    both = (
        await _scene("honest clients alone", each, alone, served),
        await _scene(name, each, beside, served, (beside_note,)),
    )
    return replace(both[0], is_interleaved=True), replace(both[1], is_interleaved=True)


async def _recovery(served: Served, over_at: float, *, within_s: float) -> float:
    """Return how long after the flood a whole answer began whose first token took no longer."""
    while True:
        asked = await ask(served.port, 0)
        if asked.ttft_s is not None and asked.ttft_s <= within_s and not asked.error:
            return max(0.0, asked.began_at - over_at)
        await asyncio.sleep(0.1)


async def _scene(
    name: str, timer: Timer, asked: Sequence[Asked], served: Served, notes: tuple[str, ...] = ()
) -> Scene:
    seconds = timer.seconds or time.monotonic() - timer.began_at
    return Scene(name, timer.began_at, seconds, asked, notes, left=await _left(served))


async def _left(served: Served) -> str:
    """Wait until nothing is held any more; return what still is."""
    timer = Timer(_SETTLE_S)
    while True:
        metrics = await served.metrics()
        left = {name: metrics[name] for name in _HELD if metrics.get(name)}
        if not left or timer.is_over():
            return ", ".join(f"{name} {value:g}" for name, value in left.items())
        await asyncio.sleep(0.2)
