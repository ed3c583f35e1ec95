"""The product: its TuningLoop outside, its pacer inside. And the same with one guard off.

Guards are switched off from here: a pacer that wraps the product's, or a name of the product
replaced while an episode runs. A name that no longer exists is an error, so that no ablation
silently becomes the whole.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from paceline_engine.pacing import ModelPacer, Pacer, StepShape, make_pacer
from paceline_engine.pacing import model_pacer as pacer_module
from paceline_engine.pacing.prior import prior_for
from paceline_engine.pacing.residuals import Residuals
from paceline_tuner import decide, guard
from paceline_tuner.guard import Guard
from paceline_tuner.loop import TuningLoop
from paceline_tuner.pods import PodClient
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.tuned_limits import TunedLimits
from paceline_wire import ModelInfo
from paceline_wire.limits import Capacity, Limits
from tune_report.arms.arm import Arm, Control, Verdict
from tune_report.settings import ServingSetting

KEY = "benchmark/service"
START = (1024, 8192)
"""The engine's default: what a pod holds before the tuner has said a word."""


class LoopControl:
    """The operator's loop over one service."""

    def __init__(self, client: PodClient, clock: Callable[[], float]) -> None:
        """Read and patch through `client`."""
        self.loop = TuningLoop(client, clock)
        self.device: Verdict = ""

    async def tick(self, pods: tuple[PodTarget, ...], sla: SLA) -> Verdict:
        """One tick of the product."""
        spec = TuningSpec(sla=sla, config_hash=repr(sla))
        report = await self.loop.tick(ServiceTarget(KEY, spec, pods))
        said: dict[str, Verdict] = {found.type: found.status for found in report.conditions}
        self.device = said.get("DeviceHealthy", "")
        return said.get("SLAAchievable", "")


def _control(client: PodClient, clock: Callable[[], float], setting: ServingSetting) -> Control:  # noqa: ARG001 - the port's shape
    return LoopControl(client, clock)


def ours() -> Arm:
    """The product as it is."""
    return Arm("ours", START, make_pacer, _control, uses_product=True)


def ablations() -> tuple[Arm, ...]:
    """The product with each guard removed, one at a time."""
    return (
        Arm("ours, no L0", START, _unpaced, _control, uses_product=True),
        Arm("ours, no shedding", START, make_pacer, _control, sheds=False, uses_product=True),
        Arm("ours, no q_r", START, _unguarded, _control, uses_product=True),
        _without("no trim", lambda: _patched((decide, "trim", lambda view: view.state))),
        _without("no dead band", lambda: _patched((Guard, "_settle", _take))),
        _without(
            "no rate limit",
            lambda: _patched(
                (Guard, "apply", lambda _guard, _current, proposals: proposals[-1]),
                (guard, "_COOL_AFTER_DECREASE_S", 0.0),
                (guard, "_COOL_AFTER_INCREASE_S", 0.0),
            ),
        ),
    )


def _without(name: str, patches: Callable[[], ExitStack]) -> Arm:
    return Arm(f"ours, {name}", START, make_pacer, _control, patches=patches, uses_product=True)


def _take(_guard: Guard, _current: TunedLimits, wanted: TunedLimits) -> TunedLimits:
    return wanted


def _patched(*changes: tuple[object, str, object]) -> ExitStack:
    stack = ExitStack()
    for owner, name, value in changes:
        stack.enter_context(_replaced(owner, name, value))
    return stack


@contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)  # raises where the product has no such guard any more
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class _Unpaced(ModelPacer):
    """Learns as the product's pacer does, and bounds a step by the budget alone."""

    def token_total(self, shape: StepShape, limits: Limits) -> int:
        """Allow the whole budget."""
        return max(limits.token_budget, shape.decode)


def _unpaced(info: ModelInfo, capacity: Capacity) -> Pacer:
    return _Unpaced(prior_for(info), capacity)


class _OneQr(Residuals):
    """Residuals whose margin is always one: steps are planned for the middle of the noise."""

    @property
    def q_r(self) -> float:
        return 1.0

    @q_r.setter
    def q_r(self, value: float) -> None:
        """Forget it."""


def _unguarded(info: ModelInfo, capacity: Capacity) -> Pacer:
    with _replaced(pacer_module, "Residuals", _OneQr):
        return make_pacer(info, capacity)
