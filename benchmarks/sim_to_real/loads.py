"""The loads: open-loop, as shares of a capacity, and the SLA."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from paceline_cli.traffic.corpus import help_topics
from paceline_cli.traffic.offered_load import (
    OfferedLoad,
    PlannedRequest,
    TokenLengths,
    plan,
)
from paceline_cli.traffic.prompts import CHARS_PER_TOKEN
from paceline_sim.hardware import Hardware
from paceline_sim.requests import Requests
from paceline_tuner.service_spec import SLA
from sim_to_real.shape import step_ms_of

_CHAT = (TokenLengths(60, 0.6, 16, 240), TokenLengths(24, 0.5, 8, 64))
_LONG = (TokenLengths(260, 0.6, 64, 800), TokenLengths(12, 0.5, 4, 32))
_BLOCK_S = 6.0
_PACE_SHAPE = {"decode": 12, "prefill": 64, "context": 1200, "attention": 64 * 32}
"""The step that the ITL target gives room for twice over."""


@dataclass(frozen=True, slots=True)
class ReplayLoad:
    """One load: its rate, burstiness and request lengths."""

    name: str
    share: float
    """Share of the capacity for its lengths."""
    cv: float = 1.0
    parts: tuple[tuple[TokenLengths, TokenLengths], ...] = (_CHAT,)
    """Prompts and outputs of each equal stretch of its time."""

    def requests(
        self,
        capacity_rps: Callable[[TokenLengths, TokenLengths], float],
        *,
        seconds: float,
        seed: int,
    ) -> tuple[PlannedRequest, ...]:
        """Plan it; `capacity_rps` is of one pair of lengths."""
        corpus, stretch_s = help_topics(), seconds / len(self.parts)
        planned: list[PlannedRequest] = []
        for index, (prompt, output) in enumerate(self.parts):
            rate = self.share * capacity_rps(prompt, output)
            workload = OfferedLoad(rate, self.cv, prompt, output, min(_BLOCK_S, stretch_s))
            part = plan(workload, corpus, duration_s=stretch_s, seed=seed * 10 + index)
            planned += [replace(one, at_s=one.at_s + index * stretch_s) for one in part]
        return tuple(planned)


LOADS = (
    ReplayLoad("steady 0.5", 0.5),
    ReplayLoad("steady 0.85", 0.85),
    ReplayLoad("burst CV 2.5", 0.6, cv=2.5),
    ReplayLoad("mix: chat, then long prompts", 0.6, parts=(_CHAT, _LONG)),
)


def promise(hardware: Hardware) -> SLA:
    """Return targets that this device can keep, rounded to two digits."""
    itl_ms = float(f"{2 * step_ms_of(hardware, **_PACE_SHAPE):.2g}")
    return SLA(ttft_p99_ms=15 * itl_ms, itl_p99_ms=itl_ms)


def as_requests(planned: tuple[PlannedRequest, ...]) -> Requests:
    """Return the requests as the simulator gets them, prompts by their length in characters."""
    lengths = [max(1, len(one.prompt) // CHARS_PER_TOKEN) for one in planned]
    return Requests(
        np.array([one.at_s for one in planned], np.float64),
        np.array(lengths, np.int64),
        np.array([one.max_tokens for one in planned], np.int64),
        np.zeros(len(planned), np.int64),
        np.zeros(len(planned), np.int8),
    )
