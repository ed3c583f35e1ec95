"""The demo's traffic: its shape, and a load that fits this machine."""

import time
from collections.abc import Sequence
from random import Random
from typing import Final

import httpx

from paceline_operator.local.errors import LocalError
from paceline_operator.traffic.open_loop import drive
from paceline_operator.traffic.record import Record
from paceline_operator.traffic.workload import Lengths, PlannedRequest, Workload, excerpt

PROMPTS: Final = Lengths(median=110, sigma=1.0, min=16, max=1000)
OUTPUTS: Final = Lengths(median=24, sigma=0.5, min=8, max=64)
CV: Final = 2.5
UTILIZATION: Final = 0.4
"""Of the measured capacity. A burst is several times the mean, and the rest must absorb it."""
_CALIBRATION_REQUESTS: Final = 12


class CalibrationError(LocalError):
    """The machine's capacity could not be measured."""


def workload(rate_rps: float) -> Workload:
    """Bursts of short and long prompts."""
    return Workload(rate_rps=rate_rps, cv=CV, prompt_tokens=PROMPTS, output_tokens=OUTPUTS)


async def measure_capacity(
    client: httpx.AsyncClient, *, model: str, corpus: str, seed: int
) -> float:
    """Requests per second, of the demo's mix, that this machine completes when it is full."""
    random = Random(seed)  # noqa: S311 - a load, not a secret
    prompts, outputs = (lengths.spread(_CALIBRATION_REQUESTS) for lengths in (PROMPTS, OUTPUTS))
    random.shuffle(outputs)
    requests = [
        PlannedRequest(0.0, excerpt(corpus, prompt, random), output)
        for prompt, output in zip(prompts, outputs, strict=True)
    ]
    records: list[Record] = []
    started_at = time.monotonic()
    await drive(client, requests, model=model, sink=records.append)
    took_s = time.monotonic() - started_at
    _check(records)
    return len(records) / took_s


def _check(records: Sequence[Record]) -> None:
    bad = [record for record in records if record.outcome != "ok"]
    if bad:
        raise CalibrationError(
            f"{len(bad)} of {len(records)} first requests failed: {bad[0].error}"
        )
