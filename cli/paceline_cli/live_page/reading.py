"""Reads one pod's telemetry for the page: load, rates, steps and the diagnosis."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from paceline_cli.diagnose.diagnosis import Diagnosis, UndiagnosableError, diagnose_evidence
from paceline_tuner.pods import PodClient, PodError
from paceline_tuner.service_target import PodTarget
from paceline_tuner.telemetry import Load
from paceline_tuner.window import Evidence, Window

_WINDOW_S = 60.0
_RATE_S = 10.0
_DIAGNOSED_EVERY_S = 10.0
"""A diagnosis walks every step of a minute, on cores that the engine wants."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One pod, as its telemetry tells it."""

    evidence: Evidence
    output_tps: float | None
    """Output tokens a second over the last ten; None after the first reading."""
    prompt_tps: float | None
    diagnosis: Diagnosis | None
    trouble: str = ""
    """Why there is no diagnosis."""


class PodReader:
    """Reads the pod again and again; each answer adds to the last."""

    def __init__(self, pods: PodClient, pod: Callable[[], PodTarget | None]) -> None:
        """Read through `pods` the pod that `pod` names; None while nothing serves."""
        self._pods = pods
        self._pod = pod
        self._window = Window()
        self._loads: deque[tuple[float, Load]] = deque()
        self._instance = ""
        self._diagnosed_at = float("-inf")
        self._diagnosis: Diagnosis | None = None
        self._trouble = ""

    async def read(self) -> Reading | None:
        """Return the pod as it is now; None while it cannot be read."""
        pod = self._pod()
        if pod is None:
            return None
        try:
            self._window.add(await self._pods.get_telemetry(pod, self._window.since))
        except PodError:
            return None  # the view's own state says what is wrong
        evidence = self._window.evidence(_WINDOW_S)
        if evidence is None:
            return None
        if evidence.instance != self._instance:
            self._instance, self._diagnosed_at = evidence.instance, float("-inf")
            self._loads.clear()
        self._diagnose(evidence)
        output_tps, prompt_tps = self._rates(evidence)
        return Reading(evidence, output_tps, prompt_tps, self._diagnosis, self._trouble)

    def _diagnose(self, evidence: Evidence) -> None:
        if evidence.now - self._diagnosed_at < _DIAGNOSED_EVERY_S:
            return
        self._diagnosed_at = evidence.now
        try:
            self._diagnosis, self._trouble = diagnose_evidence(evidence), ""
        except UndiagnosableError as problem:
            self._diagnosis, self._trouble = None, str(problem)

    def _rates(self, evidence: Evidence) -> tuple[float | None, float | None]:
        self._loads.append((evidence.now, evidence.load))
        while len(self._loads) > 2 and self._loads[1][0] <= evidence.now - _RATE_S:  # noqa: PLR2004 - a rate needs two
            self._loads.popleft()
        then, before = self._loads[0]
        seconds = evidence.now - then
        if seconds <= 0:
            return None, None
        return (
            (evidence.load.output_tokens - before.output_tokens) / seconds,
            (evidence.load.prompt_tokens - before.prompt_tokens) / seconds,
        )
