"""The whole measurement: profile, play on the real engine, play the same on the simulated one."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx

from paceline_cli.pod_client import HttpxPodClient
from paceline_cli.traffic.offered_load import TokenLengths
from paceline_tuner.service_spec import SLA
from sim_to_real.figures import RunFigures, figures
from sim_to_real.fitted import Profile, ProfileError, profiled
from sim_to_real.loads import LOADS, ReplayLoad, promise
from sim_to_real.real import RealPod
from sim_to_real.recording import Recording
from sim_to_real.run_setup import MODES, Mode, RunSetup, setups
from sim_to_real.served import served
from sim_to_real.simulated import Learner, capacity_rps, offered, replayed

Say = Callable[[str], None]
Triple = tuple[list[float], list[float], list[float]]
"""Real, simulated, simulated at the run's speed."""


@dataclass(frozen=True, slots=True)
class Options:
    """How long and how often to measure, and where to write."""

    folder: Path
    """For the manifest and the processes' logs."""
    profile_s: float
    seconds: float
    """Length of the arrivals in each run."""
    repeats: int
    seed: int
    loads: tuple[ReplayLoad, ...] = LOADS


@dataclass(frozen=True, slots=True)
class RealRun:
    """One load on the real engine."""

    load: str
    mode: Mode
    repeat: int
    recording: Recording


@dataclass(frozen=True, slots=True)
class RealRuns:
    """Every run on the real engine."""

    seen: Recording
    """While it was profiled."""
    profile: Profile
    sla: SLA
    ways: dict[Mode, RunSetup]
    rates: dict[str, tuple[float, ...]]
    """For each load, the capacity for each of its parts, in requests per second."""
    runs: tuple[RealRun, ...]
    """In the order in which they were played."""
    refused: int
    """Requests that were not answered to their end."""


@dataclass(frozen=True, slots=True)
class Played:
    """One run on the real engine, and the same on the simulated one."""

    load: str
    mode: Mode
    repeat: int
    real: RunFigures
    simulated: RunFigures
    levelled: RunFigures
    """Simulated, with every step as much slower as the device was in this run (its `level`)."""
    step_ms: Triple
    """Every step."""
    ttft_ms: Triple


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything that was measured, on both engines."""

    recorded: RealRuns
    between_ms: float
    """Median time from the end of a step to the begin of the next, while there is work."""
    played: tuple[Played, ...]


async def record(options: Options, say: Say) -> RealRuns:
    """Play on the real engine. Raises StartError, ProfileError, PodError."""
    limits = httpx.Limits(max_connections=None)
    async with (
        served(options.folder) as live,
        HttpxPodClient(timeout_s=10.0) as pods,
        httpx.AsyncClient(base_url=live.place.url, limits=limits) as client,
    ):
        pod = RealPod(live, pods, client)
        seen = await pod.profile(options.profile_s, options.seed)
        profile = _profile(seen)
        say(f"profile: {profile.steps} steps, error of the table {profile.error:.1%}")
        sla = promise(profile.hardware)
        ways = setups(profile.hardware, sla)
        capacity = _Capacity(profile, ways["fixed"])
        runs: list[RealRun] = []
        for repeat in range(options.repeats):
            for load in options.loads:
                seed = options.seed + repeat
                planned = load.requests(capacity, seconds=options.seconds, seed=seed)
                for mode in MODES if repeat % 2 == 0 else MODES[::-1]:
                    runs.append(
                        RealRun(load.name, mode, repeat, await pod.play(planned, ways[mode]))
                    )
                    say(f"{load.name}, {mode}, repeat {repeat + 1}: {len(planned)} requests")
    rates = {load.name: tuple(capacity(*part) for part in load.parts) for load in options.loads}
    return RealRuns(seen, profile, sla, ways, rates, tuple(runs), len(pod.refused))


def compare(recorded: RealRuns, options: Options) -> Measured:
    """Play the same on the simulated engine, and count both."""
    hardware, sla = recorded.profile.hardware, recorded.sla
    learner = Learner(hardware)
    learner.learn(recorded.seen.steps)
    played = []
    for run in recorded.runs:
        real, setup = run.recording, recorded.ways[run.mode]
        seed = options.seed + run.repeat
        counted = figures(real, sla, hardware, options.seconds)
        requests, pacer = offered(real), learner.copy
        simulated = replayed(hardware, requests, setup, pacer(), seed)
        levelled = replayed(hardware, requests, setup, pacer(), seed, level=counted.level)
        learner.learn(real.steps)
        played.append(
            Played(
                run.load,
                run.mode,
                run.repeat,
                counted,
                figures(simulated, sla, hardware, options.seconds),
                figures(levelled, sla, hardware, options.seconds),
                (_steps(real), _steps(simulated), _steps(levelled)),
                (_ttfts(real), _ttfts(simulated), _ttfts(levelled)),
            )
        )
    return Measured(recorded, _between_ms([run.recording for run in recorded.runs]), tuple(played))


class _Capacity:
    """Capacity under the fixed limits, simulated once for each pair of lengths."""

    def __init__(self, profile: Profile, fixed: RunSetup) -> None:
        self._profile = profile
        self._fixed = fixed
        self._known: dict[tuple[TokenLengths, TokenLengths], float] = {}

    def __call__(self, prompt: TokenLengths, output: TokenLengths) -> float:
        """Return the capacity in requests a second."""
        if (prompt, output) not in self._known:
            found = capacity_rps(self._profile.hardware, self._fixed, prompt, output)
            self._known[prompt, output] = found
        return self._known[prompt, output]


def _profile(seen: Recording) -> Profile:
    if seen.info is None or seen.limits is None:
        raise ProfileError("the pod told neither its model nor its capacity")
    return profiled(seen.steps, seen.info, seen.limits.capacity)


def _between_ms(recordings: Sequence[Recording]) -> float:
    gaps = [
        (after.at - before.at) * 1e3 - after.wall_ms
        for recording in recordings
        for before, after in pairwise(recording.steps)
        if before.running > 0
    ]
    return statistics.median(gaps) if gaps else 0.0


def _steps(recording: Recording) -> list[float]:
    return [step.wall_ms for step in recording.steps]


def _ttfts(recording: Recording) -> list[float]:
    return [r.ttft_ms for r in recording.requests if r.ttft_ms is not None]
