"""LiveService: the one service of this machine as it is now, and how it takes what happens."""

import asyncio
import json
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from paceline_api.inference_service import InferenceService
from paceline_api.pod.exit_reasons import REASONS
from paceline_api.pod.runtime_config import runtime_config
from paceline_api.tuning_spec import tuning_spec
from paceline_cli import local_state as state
from paceline_cli.errors import LocalError
from paceline_cli.manifest import ManifestError, compare, load, with_hot_fields
from paceline_cli.place import Place
from paceline_cli.up.child import ChildExit
from paceline_cli.up.loading import loading_stage
from paceline_cli.up.screen import LiveView, clock_time
from paceline_tuner.decision import Decision
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import EngineInfo

_KEPT_EVENTS = 4
_KEPT_DECISIONS = 60
_HOPELESS_STARTS = 3


class StartError(LocalError):
    """Engine and sidecar did not get ready."""


class LiveService:
    """What runs, and how it is doing. The screen, the state file and the demo read it."""

    def __init__(self, path: Path, service: InferenceService, place: Place, token: str) -> None:
        self.path = path
        self.service = service
        self.place = place
        self.token = token
        self.ready = asyncio.Event()
        self.phase = "loading the model"
        self.report: ServiceReport | None = None
        self.events: deque[str] = deque(maxlen=_KEPT_EVENTS)
        self.decisions: deque[state.Explained] = deque(maxlen=_KEPT_DECISIONS)
        self.on_event: list[Callable[[str], None]] = []
        self.on_loading: list[Callable[[str], None]] = []
        """Called with each stage of loading, and each tenth of it."""
        self.on_report: list[Callable[[ServiceReport], None]] = []
        self.page_url = ""
        """Where the page in the browser is; empty without one."""
        self.started_at = time.time()
        self._failed_starts = 0
        self._engine: EngineInfo | None = None
        """What the last engine that was asked said of itself."""

    @property
    def name(self) -> str:
        """The service's name."""
        return self.service.metadata.name

    @property
    def target(self) -> ServiceTarget:
        """The service as the tuner sees it: one pod, or none while it is not ready."""
        pod = PodTarget(
            name=f"{self.name}-0",
            admin_url=self.place.admin_url,
            token=self.token,
            node=socket.gethostname(),
        )
        pods = (pod,) if self.ready.is_set() else ()
        return ServiceTarget(self.service.key, tuning_spec(self.service.spec), pods)

    def view(self) -> LiveView:
        """What the screen shows now."""
        return LiveView(
            name=self.name,
            model=self.service.spec.model.uri,
            url=self.place.url,
            spec=tuning_spec(self.service.spec),
            state=self.phase,
            report=self.report,
            events=tuple(self.events),
            page_url=self.page_url,
        )

    def note(self, text: str) -> None:
        """Tell what has happened."""
        self.events.append(f"{clock_time(time.time())}  {text}")
        for tell in self.on_event:
            tell(text)

    def concluded(self, report: ServiceReport, decisions: Sequence[Decision]) -> None:
        """Keep a tick's conclusion, for the screen and for `explain`."""
        self._tell_adapters(report)
        self.report = report
        mode = self.service.spec.tuning.mode
        self.decisions.extend(state.Explained.of(decision, mode) for decision in decisions)
        for tell in self.on_report:
            tell(report)

    def _tell_adapters(self, report: ServiceReport) -> None:
        """Note each adapter that was loaded or refused since the last tick."""
        before = self.report.pods if self.report is not None else ()
        told = {adapter for pod in before for adapter in pod.adapters}
        for adapter in (adapter for pod in report.pods for adapter in pod.adapters):
            if adapter in told or adapter.state == "loading":
                continue
            self.note(
                f"adapter {adapter.name} is served"
                if adapter.state == "loaded"
                else f"adapter {adapter.name} was refused: {adapter.message}"
            )

    def became(self, *, is_ready: bool, phase: str) -> None:
        """Take in what `/health/ready` says."""
        before, now = loading_stage(self.phase), loading_stage(phase)
        self.phase = phase
        if now is not None and now.tenth != (before and before.tenth):
            for tell in self.on_loading:
                tell(f"{now.name} {now.fraction:.0%}")
        if is_ready and not self.ready.is_set():
            self._failed_starts = 0
            self.ready.set()
            self.note(f"ready at {self.place.url}/v1")
        elif not is_ready:
            self.ready.clear()

    def engine_said(self, info: EngineInfo | None) -> None:
        """Note in what type, with which threads and by which ops the engine computes, once."""
        if info is None or info == self._engine:
            return
        self._engine = info
        self.note(f"computes in {info.dtype}{_because(info.dtype_reason)}")
        if info.cores:
            self.note(f"computes with {info.cores}")
        if info.ops:
            self.note(info.ops)

    def exited(self, end: ChildExit) -> None:
        """Report a child that died; give up where a restart cannot help."""
        self.became(is_ready=False, phase=f"restarting the {end.name}")
        refusal = _refusal(self.place.termination_log) if end.name == "engine" else ""
        self._failed_starts += 1
        if refusal:
            raise StartError(f"the engine cannot serve {self.service.spec.model.uri}: {refusal}")
        if self._failed_starts >= _HOPELESS_STARTS:
            tail = "\n".join(end.log.read_text(errors="replace").splitlines()[-15:])
            raise StartError(
                f"the {end.name} ended with code {end.code}, {self._failed_starts} times in a row;"
                f" the end of {end.log}:\n{tail}"
            )
        self.note(
            f"{end.name} ended with code {end.code} after {end.ran_s:.0f} s;"
            f" starting it again in {end.restart_in_s:.0f} s"
        )

    def file_changed(self) -> None:
        """Apply what can be applied without a restart, and say what cannot."""
        try:
            wanted = load(self.path)
        except ManifestError as problem:
            self.note(f"kept what is served: {problem}")
            return
        difference = compare(self.service.spec, wanted.spec)
        if difference.is_hot:
            spec = with_hot_fields(self.service.spec, wanted.spec)
            self.service = self.service.model_copy(update={"spec": spec})
            write_runtime_config(self)
            self.note("new hot fields applied, nothing restarted")
        if difference.cold_fields:
            fields = ", ".join(f"spec.{field}" for field in difference.cold_fields)
            self.note(f"changed but needs a restart of `paceline up`: {fields}")

    def state(self) -> state.LocalState:
        """What other commands may know."""
        return state.LocalState(
            name=self.name,
            url=self.place.url,
            model=self.service.served_name,
            manifest=str(self.path.resolve()),
            pid=os.getpid(),
            started_at=self.started_at,
            sla=tuning_spec(self.service.spec).sla,
            report=self.report,
            decisions=tuple(self.decisions),
            admin_url=self.place.admin_url,
            token_file=str(self.place.token_file),
            price_per_hour=tuning_spec(self.service.spec).price_per_hour,
        )


def write_runtime_config(live: LiveService) -> None:
    """Leave the hot configuration where a sidecar that starts again finds it."""
    config = runtime_config(tuning_spec(live.service.spec))
    live.place.runtime_config_file.write_bytes(msgspec.json.encode(config))


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _refusal(log: Path) -> str:
    """`reason: message` of an engine that gave up for a reason that a person can act on."""
    try:
        last = json.loads(log.read_text().splitlines()[-1])
        said = f"{last['reason']}: {last['message']}"
        return said if last["reason"] in REASONS else ""
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return ""
