"""Recordings: what sidecars answer, poll by poll, about simulated engines under load.

A recording is made once at start and shared by many pods. Each of them plays it from another
minute on; its instance, its limits and their acknowledgement are its own, and live.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import msgspec

from paceline_sim.sim_pod import SimPod
from paceline_testing.simulated import a_gpu, clients
from paceline_tuner.sample import SAMPLE, sampled_requests, sampled_steps
from paceline_tuner.service_target import PodTarget
from paceline_tuner.telemetry import RequestRecord, Step, Telemetry

PERIOD_S: Final = 5.0
_SETTLED_S: Final = 30.0
_POD: Final = PodTarget("recorded", "", "")
_LIMITS: Final = {"max_batch_size": 128, "token_budget": 2048, "step_target_ms": 45.0}


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """One answer without `instance` and `limits`, as the rest of a JSON object."""

    next: int
    records: bytes
    """The answer to a client that asks for all records."""
    sample: bytes
    """The answer to a client that asks for a sample."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Answers in the order of their polls, and the limits that the pod begins with."""

    answers: tuple[RecordedAnswer, ...]
    limits: dict[str, object]


def record(requests_rps: float, polls: int, *, seed: int) -> Recording:
    """Serve a model of 8B on an H100 with so many requests a second; read it every 5 s."""
    return asyncio.run(_record(requests_rps, polls, seed))


async def _record(requests_rps: float, polls: int, seed: int) -> Recording:
    seconds = _SETTLED_S + polls * PERIOD_S
    load = clients(requests_rps, prompt=(50, 400), output=(5, 60), seconds=seconds, seed=seed)
    pod = SimPod(a_gpu(load, seed=seed))
    await pod.patch_limits(_POD, {**_LIMITS, "epoch": 1, "lease_s": None})
    pod.run_until(_SETTLED_S)
    read = await pod.get_telemetry(_POD, 0)
    limits = msgspec.to_builtins(read.limits)
    since, last, answers = read.next, 0, []
    for poll in range(polls):
        pod.run_until(_SETTLED_S + (poll + 1) * PERIOD_S)
        read = await pod.get_telemetry(_POD, since)
        since = read.next
        answer = _numbered(read, last)
        last = answer.next
        answers.append(RecordedAnswer(last, _rest(answer), _rest(_sampled(answer))))
    return Recording(tuple(answers), limits)


def _numbered(read: Telemetry, last: int) -> Telemetry:
    """Number steps and requests together, as a sidecar does."""
    records: list[Step | RequestRecord] = [*read.steps, *read.requests]
    records.sort(key=_ended_at)
    numbers = {id(each): last + place for place, each in enumerate(records, start=1)}
    return msgspec.structs.replace(
        read,
        next=last + len(records),
        limits=None,
        steps=tuple(msgspec.structs.replace(s, seq=numbers[id(s)]) for s in read.steps),
        requests=tuple(msgspec.structs.replace(r, seq=numbers[id(r)]) for r in read.requests),
    )


def _sampled(answer: Telemetry) -> Telemetry:
    """Sample as a sidecar does (`tests/seams` compares both), with the slices that grew."""
    return msgspec.structs.replace(
        answer,
        steps=(),
        requests=(),
        sketches=answer.sketches[-2:],
        step_rows=tuple(sampled_steps(answer.steps, SAMPLE)),
        request_rows=tuple(sampled_requests(answer.requests, SAMPLE)),
    )


def _ended_at(record: Step | RequestRecord) -> float:
    return record.at if isinstance(record, Step) else record.finished_at


def _rest(answer: Telemetry) -> bytes:
    fields = msgspec.to_builtins(answer)
    for name in ("instance", "limits", "pod"):
        del fields[name]
    return msgspec.json.encode(fields)[1:]
