"""The page: what was compared, and how far the simulated engine is from the real one. Markdown."""

import math
import statistics
from collections.abc import Callable, Sequence

from sim_to_real.figures import ERRORS, RunFigures, ratio
from sim_to_real.measure import Measured, Options, Played
from sim_to_real.run_setup import INTERVAL_S, MODES, Mode

_INTRODUCTION = """\
# The simulated engine beside the real one

Written by `make sim-to-real`. Every figure is measured; none is typed in.

The tuner is evaluated on simulated engines (`sim/paceline_sim/`, `docs/tuning-report.md`). This
page says how far such a simulation is from the engine that it stands for. The real engine and its
sidecar serve the embedded SmolLM2-135M on this machine's CPU, over loopback. The simulator gets its
table of step times, its costs and its noise from a profile of {profile_s:g} s, and from nothing
later. Then both serve the same requests, with the arrivals and lengths that the real sidecar
recorded. *fixed*: limits that stay. *tuned*: the operator's `TuningLoop`, live on both, every
{interval:g} s, from the full capacity; the simulated engine's pacer has seen the same steps as the
real one. Nothing is shed, and no prefix is shared.

"""
_READING = """\
## How to read it

* **Error**: simulated over real, minus one. Median over runs; brackets hold the least and the
  greatest.
* **At the run's speed**: the same simulation, with every step slowed down as the machine was in
  that run (*speed*: the median of measured step times over the profile's table). What remains is
  the error of the queue, of the batching and of the shapes; the difference comes from other
  processes on the machine.
* **A load of 1**: the requests a second that the simulator finishes under the fixed limits while
  its queue is never empty.
* **Goodput**: requests that ended with TTFT within its target and a mean token time within the ITL
  target. **Attainment**: the smaller of two shares, requests within TTFT and gaps within ITL.
* The real TTFT counts from when the sidecar accepts the request, the simulated one from its
  arrival. Only the real engine has tokenizing and sockets.
* [benchmarks/results](../benchmarks/results/tuning/vidur.md) compares the simulator's queue with
  another simulator's, under equal step times.
* With so few requests in a run, their p99 is nearly the slowest request.

"""
_FIGURES = "Simulated over real figures of each run, beside the band of 25 %"
_NAMES = {
    "step_p50_ms": "step p50",
    "step_p90_ms": "step p90",
    "ttft_p50_ms": "TTFT p50",
    "ttft_p99_ms": "TTFT p99",
    "tpot_p50_ms": "TPOT p50",
    "itl_p99_ms": "ITL p99",
    "goodput_rps": "goodput",
}
Value = Callable[[Played], float]


def page(measured: Measured, options: Options, machine: str, images: str, note: str = "") -> str:
    """Write the page; `images` is the folder of its plots, seen from the page."""
    text = _INTRODUCTION.format(profile_s=options.profile_s, interval=INTERVAL_S)
    parts = [
        text,
        note,
        _setting(measured, options, machine),
        _summary(measured),
        f"![{_FIGURES}]({images}/figures.png)\n",
        _errors(measured),
        _shares(measured),
        _limits(measured),
        f"![Step times and first tokens of both]({images}/spread.png)\n",
        _profile(measured),
        _READING,
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


def _setting(measured: Measured, options: Options, machine: str) -> str:
    recorded = measured.recorded
    start = recorded.ways["fixed"].start
    rates = "; ".join(
        f"{name} {' and '.join(f'{rate:.2f}' for rate in found)}"
        for name, found in recorded.rates.items()
    )
    rows = [
        ("machine", machine),
        ("SLA", f"TTFT p99 {recorded.sla.ttft_p99_ms:g} ms, ITL p99 {_itl(measured):g} ms"),
        ("fixed limits", f"batch {start.max_batch_size}, tokens {start.token_budget}"),
        ("requests a second at a load of 1, for each part", rates),
        ("runs", f"{len(measured.played)}, each {options.seconds:g} s of arrivals"),
        ("repeats, interleaved", str(options.repeats)),
        ("requests without an answer", str(recorded.refused)),
        (
            "time between two steps, median",
            f"{measured.between_ms:.2f} ms, which the simulator leaves out",
        ),
    ]
    return "## What was run\n\n" + _table(("", ""), rows)


def _summary(measured: Measured) -> str:
    rows = []
    for name in ERRORS:
        plain = [abs(_error(p, name, p.simulated)) for p in measured.played]
        levelled = [abs(_error(p, name, p.levelled)) for p in measured.played]
        rows.append((_NAMES[name], *(_amount(_known(values)) for values in (plain, levelled))))
    head = ("Figure", "error", "at the run's speed")
    title = "## Over all runs\n\nAbsolute values: median [least, greatest].\n\n"
    return title + _table(head, rows)


def _errors(measured: Measured) -> str:
    rows = []
    for load, mode, played in _groups(measured):
        for name in ERRORS:
            real = [getattr(p.real, name) for p in played]
            rows.append(
                (
                    load,
                    mode,
                    _NAMES[name],
                    _plain(real),
                    _plain([getattr(p.simulated, name) for p in played]),
                    _spread(_known([_error(p, name, p.simulated) for p in played])),
                    _spread(_known([_error(p, name, p.levelled) for p in played])),
                )
            )
    head = ("Load", "Limits", "Figure", "real", "simulated", "error", "at the run's speed")
    return "## Error by load\n\nTimes in milliseconds, goodput in requests a second.\n\n" + _table(
        head, rows
    )


def _shares(measured: Measured) -> str:
    rows = []
    for load, mode, played in _groups(measured):
        rows.append(
            (
                load,
                mode,
                str(sum(p.real.requests for p in played)),
                _share(played, lambda p: p.real.attainment),
                _share(played, lambda p: p.simulated.attainment),
                _share(played, lambda p: p.levelled.attainment),
                _share(played, lambda p: p.real.pacer_error),
                _share(played, lambda p: p.levelled.pacer_error),
                _share(played, lambda p: p.real.pacer_coverage),
                _share(played, lambda p: p.levelled.pacer_coverage),
                _share(played, lambda p: p.real.table_error),
                f"{statistics.median(p.real.level for p in played):.2f}",
            )
        )
    head = (
        "Load",
        "Limits",
        "requests",
        "attainment, real",
        "simulated",
        "at the run's speed",
        "pacer's error, real",
        "at the run's speed",
        "steps within its q_r, real",
        "at the run's speed",
        "error of the profile's table",
        "speed",
    )
    return "## Attainment, and the pacer's own model of a step\n\n" + _table(head, rows)


def _limits(measured: Measured) -> str:
    rows = []
    for load, mode, played in _groups(measured):
        if mode == "tuned":
            columns = [
                _plain([getattr(side(p), name) for p in played])
                for name in ("batch", "budget", "target_ms")
                for side in (_real, _simulated, _levelled)
            ]
            rows.append((load, *columns))
    head = (
        "Load",
        *(
            f"{name}, {side}"
            for name in ("batch", "tokens", "step target ms")
            for side in ("real", "simulated", "at the run's speed")
        ),
    )
    title = "## What the tuner chose\n\nMedian of each run's last third.\n\n"
    return title + _table(head, rows)


def _profile(measured: Measured) -> str:
    profile = measured.recorded.profile
    hardware, costs, noise = profile.hardware, profile.hardware.costs, profile.hardware.noise
    tokens = (1, 4, 16, 64, 128, 256, 512)
    table = _table(
        ("tokens in the step", *map(str, tokens)),
        [("ms", *(f"{hardware.dense_ms[count]:.1f}" for count in tokens))],
    )
    rows = [
        ("steps", f"{profile.steps}, mean error {profile.error:.1%}"),
        ("context", f"{costs.context_ms * 1e3:.3g} ms per 1,000 tokens"),
        ("prefill attention", f"{costs.pair_ms * 1e6:.3g} ms per million pairs"),
        ("a sequence", f"{costs.row_ms:.3g} ms"),
        ("a step with prefill", f"{costs.mixed_ms:.3g} ms"),
        ("noise", f"{noise.sigma:.1%}, correlated {noise.correlation:.2f}"),
        ("spikes", f"{noise.spike_chance:.2%}, {noise.spike[0]:.1f} to {noise.spike[1]:.1f} times"),
    ]
    return "## The profile\n\n" + table + "\n" + _table(("", ""), rows)


def _groups(measured: Measured) -> list[tuple[str, Mode, list[Played]]]:
    loads = dict.fromkeys(p.load for p in measured.played)
    found: list[tuple[str, Mode, list[Played]]] = [
        (load, mode, [p for p in measured.played if (p.load, p.mode) == (load, mode)])
        for load in loads
        for mode in MODES
    ]
    return [group for group in found if group[2]]


def _error(played: Played, name: str, simulated: RunFigures) -> float:
    return ratio(getattr(played.real, name), getattr(simulated, name))


def _real(played: Played) -> RunFigures:
    return played.real


def _simulated(played: Played) -> RunFigures:
    return played.simulated


def _levelled(played: Played) -> RunFigures:
    return played.levelled


def _share(played: Sequence[Played], value: Value) -> str:
    known = _known([value(p) for p in played])
    return f"{statistics.median(known):.1%}" if known else "-"


def _plain(values: Sequence[float]) -> str:
    known = _known(values)
    return f"{statistics.median(known):,.3g}" if known else "-"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    middle = statistics.median(values)
    return f"{middle:+.0%} [{min(values):+.0%}, {max(values):+.0%}]"


def _amount(values: Sequence[float]) -> str:
    return _spread(values).replace("+", "")


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _itl(measured: Measured) -> float:
    return measured.recorded.sla.itl_p99_ms or math.nan


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
