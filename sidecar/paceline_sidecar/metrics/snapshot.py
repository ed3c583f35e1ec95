"""All that a scrape reads, taken at one moment."""

from dataclasses import asdict, dataclass

from paceline_sidecar.adapter_plan import AdapterState
from paceline_sidecar.admission.rules import Backlog
from paceline_sidecar.backend import EngineView
from paceline_sidecar.hot_config import Sla
from paceline_sidecar.metrics.ledger import Ledger
from paceline_sidecar.service import Service
from paceline_sidecar.tracing.trace import SpanCounts
from paceline_wire import EngineLoad, LimitsState, StepModelInfo


@dataclass(frozen=True, slots=True)
class LoraUse:
    """LoRA adapters that requests name now."""

    most: int
    """How many the engine has room for."""
    waiting: tuple[str, ...]
    """Of requests without a token yet."""
    running: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the process; None where there is no engine to ask."""

    name: str
    ledger: Ledger
    view: EngineView
    load: EngineLoad | None
    limits: LimitsState | None
    model: StepModelInfo | None
    sla: Sla
    batch_sla: Sla | None
    queue: Backlog
    in_flight: int
    adapters: list[AdapterState]
    loras: LoraUse | None
    """None where the engine has no room for any."""
    ready: bool
    draining: bool
    now: float
    spans: dict[str, int]
    """Spans of traces by what became of them."""


def snapshot(service: Service) -> Snapshot:
    """Read the service: what changes is copied, so that a thread may read on."""
    heard = service.ledger.telemetry
    return Snapshot(
        name=service.name,
        ledger=service.ledger.copy(),
        view=service.backend.view,
        load=None if heard is None else heard.load,
        limits=service.backend.view.limits,
        model=None if heard is None else heard.model,
        sla=service.config.sla,
        batch_sla=service.config.batch_sla,
        queue=service.admission.queue,
        in_flight=len(service.exchanges),
        adapters=service.adapters.states(),
        loras=_lora_use(service),
        ready=not service.missing(),
        draining=service.leaving,
        now=service.clock(),
        spans=asdict(SpanCounts() if service.tracing is None else service.tracing.counts),
    )


def _lora_use(service: Service) -> LoraUse | None:
    model = service.backend.view.model
    if model is None or not model.max_loras:
        return None
    named = [(each.generations[0].submit.adapter, each.heard) for each in service.exchanges]
    waiting = sorted({name for name, is_heard in named if name and not is_heard})
    running = sorted({name for name, is_heard in named if name and is_heard})
    return LoraUse(model.max_loras, tuple(waiting), tuple(running))
