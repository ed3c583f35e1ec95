"""How a load is served, on either engine: which limits it starts from, and who moves them."""

from dataclasses import dataclass
from typing import Literal

from paceline_sim.hardware import Hardware
from paceline_tuner.service_spec import SLA, AdmissionLimits, TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.step_target import starting_target_ms
from paceline_wire.limits import Limits
from sim_to_real.served import BATCH, BUDGET
from sim_to_real.shape import step_ms_of

Mode = Literal["fixed", "tuned"]
MODES: tuple[Mode, ...] = ("fixed", "tuned")
KEY = "benchmark/sim-to-real"
INTERVAL_S = 2.0
"""Between the tuner's ticks: runs are shorter than a day."""
_FIXED_BATCH = 16
_FIXED_BUDGETS = (512, 384, 256, 192, 128, 96, 64, 48, 32)
_CONTEXT = 100
"""Tokens of each decode, where fixed limits are chosen."""


@dataclass(frozen=True, slots=True)
class RunSetup:
    """One way to serve a load."""

    mode: Mode
    sla: SLA
    start: Limits

    def target(self, pod: PodTarget) -> ServiceTarget:
        """The service as the tuning loop reads it. Nothing is shed: both engines serve all."""
        admission = AdmissionLimits(shed_hopeless=False)
        spec = TuningSpec(self.sla, admission=admission, interval_s=INTERVAL_S, config_hash="-")
        return ServiceTarget(KEY, spec, (pod,))


def setups(hardware: Hardware, sla: SLA) -> dict[Mode, RunSetup]:
    """Return careful fixed limits, and the full capacity for the tuner."""
    whole = Limits(BATCH, BUDGET, step_target_ms=starting_target_ms(sla))
    return {
        "fixed": RunSetup("fixed", sla, Limits(_FIXED_BATCH, _budget(hardware, sla))),
        "tuned": RunSetup("tuned", sla, whole),
    }


def _budget(hardware: Hardware, sla: SLA) -> int:
    """Return the largest budget whose step beside a full batch keeps the ITL target."""
    assert sla.itl_p99_ms is not None
    for budget in _FIXED_BUDGETS:
        prefill = budget - _FIXED_BATCH
        took_ms = step_ms_of(
            hardware,
            decode=_FIXED_BATCH,
            prefill=prefill,
            context=_FIXED_BATCH * _CONTEXT,
            attention=prefill * prefill // 2,
        )
        if took_ms <= sla.itl_p99_ms:
            return budget
    return _FIXED_BUDGETS[-1]
