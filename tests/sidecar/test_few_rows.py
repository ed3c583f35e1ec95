"""A pod with few rows: who waits there waits for a row, and seldom for too long."""

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from paceline_sidecar.admission.control import AdmissionControl
from paceline_sidecar.admission.tickets import Ticket
from paceline_sidecar.errors import Refused
from paceline_sidecar.hot_config import AdmissionPolicy, HotConfig, Sla
from paceline_testing.clock import ManualClock
from paceline_testing.scripted_engine import a_step

ROWS = 8
PROMPT = 32
OUTPUT = 16
STEP_S = 0.2
MOST_RPS = ROWS / (OUTPUT * STEP_S)
"""2.5 requests a second keep every row busy."""
TARGET_S = 4.0
SECONDS = 2000.0


@dataclass
class Pod:
    """Eight rows whose steps take a fifth of a second, behind the sidecar's admission."""

    is_shedding: bool
    refused: int = 0
    waits_s: list[float] = field(default_factory=list)
    """From each arrival to its first token."""

    def __post_init__(self) -> None:
        policy = AdmissionPolicy(max_queued_requests=10_000, shed_hopeless=self.is_shedding)
        self._config = HotConfig(sla=Sla(ttft_p99_ms=TARGET_S * 1e3), admission=policy)
        self._clock = ManualClock(0.0)
        self._admission = AdmissionControl(self._clock)
        self._waiting: deque[Ticket] = deque()
        self._left: list[int] = []
        """Tokens to come, of each running request."""

    def serve(self, rate_rps: float, seed: int) -> None:
        """Answer the requests of some minutes, which come by chance."""
        chance, at_s = random.Random(seed), 0.0
        arrivals = deque[float]()
        while at_s < SECONDS:
            at_s += chance.expovariate(rate_rps)
            arrivals.append(at_s)
        for number in range(1, 12_000):
            end_s = number * STEP_S
            while arrivals and arrivals[0] < end_s:
                self._clock.now = arrivals.popleft()
                self._arrive()
            self._clock.now = end_s
            self._step(number)

    def _arrive(self) -> None:
        try:
            [ticket] = self._admission.admit(
                [PROMPT], lane="interactive", config=self._config, arrived_at=self._clock()
            )
        except Refused:
            self.refused += 1
            return
        self._waiting.append(ticket)

        def give_way(_refusal: Refused) -> bool:
            self._waiting.remove(ticket)
            self.refused += 1
            return True

        ticket.party.give_way = give_way

    def _step(self, number: int) -> None:
        """Whoever came before it gets a row, if there is one, and its first token at its end."""
        now, began_s = self._clock(), self._clock() - STEP_S
        num_decodes = len(self._left)
        new: list[Ticket] = []
        while (
            self._waiting
            and num_decodes + len(new) < ROWS
            and self._waiting[0].party.arrived_at <= began_s
        ):
            new.append(self._waiting.popleft())
        self._left = [left - 1 for left in self._left if left > 1]
        for ticket in new:
            self.waits_s.append(now - ticket.party.arrived_at)
            ticket.leave()
            self._left.append(OUTPUT - 1)
        if num_decodes or new:
            step = a_step(
                number,
                at=now,
                wall_ms=STEP_S * 1e3,
                decode=num_decodes,
                prefill=PROMPT * len(new),
                waiting_tokens=PROMPT * len(self._waiting),
            )
            self._admission.rate.learn([step])
        self._admission.sweep(self._config, now, computed_ahead=0)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("share", [0.5, 0.75, 0.85])
def test_hardly_anybody_is_refused_who_would_be_in_time(share: float, seed: int) -> None:
    """It loses hardly more requests than come late at a pod that refuses nobody."""
    patient, shedding = Pod(is_shedding=False), Pod(is_shedding=True)

    patient.serve(share * MOST_RPS, seed)
    shedding.serve(share * MOST_RPS, seed)

    offered = len(patient.waits_s)
    late = sum(wait_s > TARGET_S for wait_s in patient.waits_s)
    lost = shedding.refused + sum(wait_s > TARGET_S for wait_s in shedding.waits_s)
    assert len(shedding.waits_s) + shedding.refused == offered
    assert lost <= late + 0.002 * offered


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_too_many_are_refused_so_that_the_others_are_in_time(seed: int) -> None:
    """A fifth more than the rows can serve."""
    pod = Pod(is_shedding=True)

    pod.serve(1.2 * MOST_RPS, seed)

    late = sum(wait_s > TARGET_S for wait_s in pod.waits_s)
    served = len(pod.waits_s)
    assert served - late >= 0.92 * MOST_RPS * SECONDS
    assert late <= 0.02 * served
