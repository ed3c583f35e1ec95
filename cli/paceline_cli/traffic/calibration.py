"""What this machine is and how fast it serves, and the demo's load that fits it."""

import os
import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

import httpx

from paceline_cli.errors import LocalError
from paceline_cli.traffic.offered_load import (
    OfferedLoad,
    PlannedRequest,
    TokenLengths,
)
from paceline_cli.traffic.open_loop import Asking, drive_open
from paceline_cli.traffic.prompts import excerpt
from paceline_cli.traffic.record import ClientRecord

PROMPTS: Final = TokenLengths(median=180, sigma=0.8, min=16, max=900)
OUTPUTS: Final = TokenLengths(median=20, sigma=0.5, min=8, max=48)
CV: Final = 2.5
_BLOCK_S: Final = 10.0
"""Each of them carries the same load, so that both phases do."""
UTILIZATION: Final = 0.7
"""Share of the measured capacity, which is too low: its last requests ran with few others."""
_FULL_HOUSE: Final = 8
"""Requests at once."""
_ALONE_BEFORE: Final = 3
_ALONE_AFTER: Final = 2
"""Lone requests before and after the full house, one after another."""
_LEAST_CHUNK: Final = 64
"""Prefill tokens per step below which long prompts starve."""
_MARGIN: Final = 1.8
"""Of the target over a mean step, for the p99. With 1.6 a machine that was just fast enough missed
its target by 2 %."""


class CalibrationError(LocalError):
    """The machine's speed could not be measured."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What this machine can do with this model."""

    capacity_rps: float
    """Requests per second, of the demo's mix, that it completes when it is full."""
    decode_ms: float
    """One token of a lone request, the slowest of several."""
    prefill_ms: float
    """Each token of a lone prompt, the slowest of several."""

    @property
    def least_itl_ms(self) -> float:
        """An ITL target that a few answers beside the smallest useful prefill chunk can keep."""
        return _MARGIN * (self.decode_ms + _LEAST_CHUNK * self.prefill_ms)


def workload(rate_rps: float) -> OfferedLoad:
    """Bursts of short and long prompts."""
    return OfferedLoad(
        rate_rps=rate_rps, cv=CV, prompt_tokens=PROMPTS, output_tokens=OUTPUTS, block_s=_BLOCK_S
    )


async def measure_speed(client: httpx.AsyncClient, *, model: str, corpus: str, seed: int) -> Speed:
    """Measure the speed of requests alone, before and after that of several at once."""
    random = Random(seed)  # noqa: S311 - a load, not a secret
    alone: list[ClientRecord] = []

    async def ask_alone() -> None:
        prompt = excerpt(corpus, PROMPTS.quantile(0.9), random)
        records, _ = await _serve(client, [PlannedRequest(0.0, prompt, OUTPUTS.max // 2)], model)
        alone.extend(records)

    for _ in range(_ALONE_BEFORE):
        await ask_alone()
    outputs = OUTPUTS.spread(_FULL_HOUSE)
    random.shuffle(outputs)
    many = [
        PlannedRequest(0.0, excerpt(corpus, prompt, random), output)
        for prompt, output in zip(PROMPTS.spread(_FULL_HOUSE), outputs, strict=True)
    ]
    _, took_s = await _serve(client, many, model)
    for _ in range(_ALONE_AFTER):
        await ask_alone()
    return speed_of(alone, capacity_rps=len(many) / took_s)


def speed_of(alone: Sequence[ClientRecord], *, capacity_rps: float) -> Speed:
    """The speed of the slowest of the lone requests `alone`, each answered in two pieces or more.

    A machine that others share is slower in some seconds than in others: they make the p99.
    """
    decodes_ms = [median(record.itls_ms) for record in alone]
    prefills_ms = [
        max((record.ttft_ms or 0.0) - decode_ms, 0.0) / max(record.prompt_tokens, 1)
        for record, decode_ms in zip(alone, decodes_ms, strict=True)
    ]
    return Speed(capacity_rps, max(decodes_ms), max(prefills_ms))


async def _serve(
    client: httpx.AsyncClient, requests: Sequence[PlannedRequest], model: str
) -> tuple[list[ClientRecord], float]:
    records: list[ClientRecord] = []
    started_at = time.monotonic()
    await drive_open(client, requests, Asking(model), records.append)
    took_s = time.monotonic() - started_at
    bad = [record for record in records if record.outcome != "ok" or len(record.token_ats) < 2]  # noqa: PLR2004 - a gap has two ends
    if bad:
        why = bad[0].error or "fewer than two pieces of text"
        raise CalibrationError(f"{len(bad)} of {len(records)} first requests failed: {why}")
    return records, took_s


def machine() -> str:
    """Which machine the numbers come from."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        models = [text.split(":", 1)[1].strip() for text in lines if text.startswith("model name")]
        name = models[0] if models else name
    return f"{os.cpu_count()} cores of {name}"
