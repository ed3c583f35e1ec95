"""Measure one operator with a thousand services, against a real API server.

    PYTHONPATH=benchmarks:tests python -m many_services --services 1000

Starts etcd, the API server, controllers and scheduler (no kubelet: every pod stays Pending), and
one operator as a process of its own with the chart's rights. The scenes, in their order:

* all at once: the services are created as fast as the API server takes them; for each, the time
  from its creation to its Deployment's
* steady: nothing changes
* one alone: single services, one after the other, beside all the others
* SLA changed in all at once; for each, the time to its ConfigMap's change
* restart: the operator is ended and started again; nothing has changed
* deleted: all at once

Requests are counted in the API server's audit log, which names the service account. Processor time
and memory are the operator's own process, from the kernel. Its metrics are read every 15 s, as by
Prometheus; the queue's greatest age is of those looks.
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from many_services.page import Scene, page
from many_services.services import Key, Seen, Services, keys, namespaces, opened
from many_services.usage import Usage
from many_services.world import ROOT, World, used, world
from paceline_testing.running_operator import RunningOperator

RESULTS = ROOT / "benchmarks" / "results" / "operator"
_LOOK_EVERY_S = 0.5
_SCRAPE_EVERY_S = 15.0
_WITHIN_S = 900.0
_ALONE = 30


@dataclass(slots=True)
class Measuring:
    """What one scene has used, from its beginning to its end."""

    world: World
    operator: RunningOperator
    began_at: float
    before: Usage
    oldest_s: list[float] = field(default_factory=list)

    async def watch_queue(self) -> None:
        """Read the queue's age for ever."""
        while True:
            await asyncio.sleep(_SCRAPE_EVERY_S)
            text = await asyncio.to_thread(self.operator.get, "/metrics")
            name = "paceline_operator_queue_oldest_age_seconds "
            (line,) = (line for line in text.splitlines() if line.startswith(name))
            self.oldest_s.append(float(line.split()[1]))


async def measured(
    name: str,
    place: World,
    operator: RunningOperator,
    scene: Callable[[], Awaitable[Mapping[Key, float]]],
) -> Scene:
    """Run one scene; `scene` returns how long each service took, in seconds."""
    measuring = Measuring(place, operator, time.time(), used(operator))
    watching = asyncio.create_task(measuring.watch_queue())
    try:
        took = await scene()
    finally:
        watching.cancel()
    ended_at, after = time.time(), used(operator)
    calls: Counter[str] = await asyncio.to_thread(place.calls, measuring.began_at, ended_at)
    found = Scene(
        name=name,
        seconds=ended_at - measuring.began_at,
        took_s=sorted(took.values()),
        cpu_s=after.cpu_s - measuring.before.cpu_s,
        rss_mib=after.rss_mib,
        peak_mib=after.peak_mib,
        oldest_s=max(measuring.oldest_s, default=0.0),
        calls=dict(calls.most_common()),
    )
    print(found.line(), flush=True)
    return found


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition; raises TimeoutError where it does not come."""
    async with asyncio.timeout(_WITHIN_S):
        while not await reached():  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(_LOOK_EVERY_S)


async def _told(services: Services, wanted: list[Key], times: Mapping[Key, float]) -> None:
    """Wait until something was told of every one, and every status speaks of its spec."""

    async def reached() -> bool:
        return times.keys() >= set(wanted) and await services.unready() == 0

    await until(reached)


def _since(begun: Mapping[Key, float], told: Mapping[Key, float]) -> dict[Key, float]:
    """Subtract; what was told before its request was answered took no time."""
    return {key: max(0.0, told[key] - at) for key, at in begun.items()}


def _forget(*seen: Seen) -> None:
    for each in seen:
        each.clear()


async def run(count: int, steady_s: float) -> list[Scene]:
    """Play every scene."""
    wanted, alone = keys(count), keys(_ALONE, first=count)
    scenes: list[Scene] = []
    with world(namespaces([*wanted, *alone])) as place:
        async with opened(place.admin) as services:
            made, maps = services.deployments, services.config_maps

            async def all_at_once() -> dict[Key, float]:
                begun = await services.create(wanted)
                await _told(services, wanted, made.created)
                return _since(begun, made.created)

            async def nothing() -> dict[Key, float]:
                await asyncio.sleep(steady_s)
                return {}

            async def one_alone() -> dict[Key, float]:
                took: dict[Key, float] = {}
                for key in alone:
                    took |= await services.create([key])
                    await asyncio.sleep(1)
                await _told(services, alone, made.created)
                return _since(took, made.created)

            async def another_sla() -> dict[Key, float]:
                _forget(made, maps)
                begun = await services.change_sla(wanted, "600ms")
                await _told(services, wanted, maps.changed)
                return _since(begun, maps.changed)

            async def deleted() -> dict[Key, float]:
                _forget(made, maps)
                begun = await services.delete([*wanted, *alone])

                async def are_gone() -> bool:
                    return made.deleted.keys() >= begun.keys()

                await until(are_gone)
                return _since(begun, made.deleted)

            with place.operator() as operator:
                for name, scene in (
                    ("all at once", all_at_once),
                    ("settling", nothing),
                    ("steady", nothing),
                    ("one alone", one_alone),
                    ("SLA changed in all", another_sla),
                ):
                    scenes.append(await measured(name, place, operator, scene))
            with place.operator() as operator:
                for name, scene in (("restart", nothing), ("deleted", deleted)):
                    scenes.append(await measured(name, place, operator, scene))
    return scenes


def main() -> None:
    """Parse, run, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--steady-s", type=float, default=120.0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    scenes = asyncio.run(run(options.services, options.steady_s))
    options.results.mkdir(parents=True, exist_ok=True)
    text = page(scenes, options.services)
    (options.results / "many_services.md").write_text(text)
    described = json.dumps([scene.described() for scene in scenes], indent=2) + "\n"
    (options.results / "many_services.json").write_text(described)
    print(text)


if __name__ == "__main__":
    main()
