"""`make overload`: what becomes of every stream where there is more load than a pod can serve.

The embedded model, greedy and in float32, in a real engine behind a real sidecar on this machine.
Each prompt is asked alone first: that text is the one that every later stream of it must give, so
what is lost, doubled or mixed shows. Then one scene after the other. With `--results` the table,
the figures and the flood second by second are kept.
"""

import argparse
import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from chaos.streams import Answer
from overload import scenes
from overload.asking import Outcome
from overload.flood import draw_flood, flood_of
from overload.report import Run, record, table
from overload.served import BATCH, TTFT_S, served
from paceline_cli.traffic.calibration import machine

_OUT = Path("out/overload")


async def run(minutes: float) -> Run:
    """Serve, and go through all scenes."""
    part_s = max(15.0, min(60.0, 6 * minutes))
    async with served(_OUT) as service:
        quiet = await scenes.quiet(service)
        answers = [Answer(one.text, one.finish_reason) for one in quiet]
        idle_ttft_s = max(one.ttft_s or 0.0 for one in quiet)
        await scenes.capacity(service, 5.0)  # warm: the step model learns, pages are touched
        load = os.getloadavg()[0]
        full = await scenes.capacity(service, max(30.0, part_s))
        rate = scenes.steady_rps(full)
        _say(f"capacity {rate:.2f}/s")
        done = [full]
        for coming in (
            scenes.burst(service),
            scenes.flood(service, scenes.TIMES_CAPACITY * rate, 60 * minutes, idle_ttft_s),
            scenes.misbehaving(service, part_s),
            scenes.kill(service, "engine"),
            scenes.kill(service, "sidecar"),
        ):
            done.append(await coming)
            _say(f"{done[-1].name}: {done[-1].seconds:.0f} s")
        done += await scenes.attacked(service, rounds=2 if minutes < 5 else 4)
    where = (
        f"{machine()}, load {load:.1f} before it; {BATCH} rows, one thread of the engine,"
        f" float32, first token within {TTFT_S:g} s"
    )
    return Run(where, answers, done, rate, done[2])


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def main() -> None:
    """Run, print the table, and fail where a stream was mixed or something was left."""
    parser = argparse.ArgumentParser(prog="overload", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="length of the flood")
    parser.add_argument("--results", type=Path, help="folder for overload.md and overload.json")
    parser.add_argument("--png", type=Path, default=_OUT / "flood.png", help="the plot")
    options = parser.parse_args()
    _OUT.mkdir(parents=True, exist_ok=True)
    found = asyncio.run(run(options.minutes))
    print(table(found))
    flood = flood_of(found)
    options.png.parent.mkdir(parents=True, exist_ok=True)
    draw_flood(flood, options.png)
    if options.results is not None:
        options.results.mkdir(parents=True, exist_ok=True)
        (options.results / "overload.md").write_text(table(found))
        (options.results / "overload.json").write_text(json.dumps(record(found), indent=1) + "\n")
        (options.results / "flood.json").write_text(json.dumps(asdict(flood)) + "\n")
    asked = [one for scene in found.scenes for one in scene.asked]
    if any(found.outcome(one) is Outcome.MIXED for one in asked):
        sys.exit("streams were mixed")
    if any(scene.left for scene in found.scenes):
        sys.exit("something was left behind")


if __name__ == "__main__":
    main()
