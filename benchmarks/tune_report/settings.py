"""Settings: a device, its SLA, and what its pods allocate at start."""

from dataclasses import dataclass

from paceline_sim.hardware import A100_8B, CPU_135M, H100_8B, H100_70B_TP4, Hardware
from paceline_sim.published import A100_8B_PROFILED
from paceline_tuner.service_spec import SLA
from paceline_wire.limits import Capacity
from tune_report.mixes import CONVERSATION, LONG_30, SHORT, Mix

_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class ServingSetting:
    """A workload's device and its SLA."""

    name: str
    hardware: Hardware
    sla: SLA
    mix: Mix = CONVERSATION
    max_batch_size: int = 1024
    max_token_budget: int = 8192
    max_model_len: int = 32_768
    has_few_rows: bool = False
    """Prompts are so long that KV memory holds few of them: the grid looks closely at few rows."""

    @property
    def capacity(self) -> Capacity:
        """Return the capacity of a pod of this setting."""
        return Capacity(
            max_batch_size=self.max_batch_size,
            max_token_budget=self.max_token_budget,
            num_blocks=self.hardware.num_kv_tokens // _BLOCK_TOKENS,
            block_size=_BLOCK_TOKENS,
            max_model_len=self.max_model_len,
        )

    @property
    def pace_ms(self) -> float:
        """The token target, of whichever kind."""
        pace_ms = self.sla.itl_p99_ms or self.sla.tpot_p99_ms
        if pace_ms is None:
            raise ValueError(f"setting {self.name} promises no ITL and no TPOT")
        return pace_ms


H100_ITL = ServingSetting("H100 ITL 50", H100_8B, SLA(ttft_p99_ms=1000.0, itl_p99_ms=50.0))
H100_TPOT = ServingSetting("H100 TPOT 50", H100_8B, SLA(ttft_p99_ms=1000.0, tpot_p99_ms=50.0))
A100_ITL = ServingSetting("A100 ITL 60", A100_8B, SLA(ttft_p99_ms=1500.0, itl_p99_ms=60.0))
PUBLISHED_ITL = ServingSetting(
    "A100 published ITL 80", A100_8B_PROFILED, SLA(ttft_p99_ms=2000.0, itl_p99_ms=80.0)
)
H100_70B_ITL = ServingSetting(
    "4xH100 70B ITL 80", H100_70B_TP4, SLA(ttft_p99_ms=2000.0, itl_p99_ms=80.0)
)
CPU_ITL = ServingSetting(
    "CPU ITL 300",
    CPU_135M,
    SLA(ttft_p99_ms=3000.0, itl_p99_ms=300.0),
    SHORT,
    max_batch_size=64,
    max_token_budget=2048,
)


def _long(name: str, hardware: Hardware, sla: SLA) -> ServingSetting:
    return ServingSetting(name, hardware, sla, mix=LONG_30, max_model_len=65_536, has_few_rows=True)


H100_LONG_ITL = _long("H100 long ITL 60", H100_8B, SLA(ttft_p99_ms=8000.0, itl_p99_ms=60.0))
H100_LONG_TPOT = _long("H100 long TPOT 60", H100_8B, SLA(ttft_p99_ms=8000.0, tpot_p99_ms=60.0))
A100_LONG_ITL = _long("A100 long ITL 100", A100_8B, SLA(ttft_p99_ms=16_000.0, itl_p99_ms=100.0))
H100_70B_LONG_ITL = _long(
    "4xH100 70B long ITL 100", H100_70B_TP4, SLA(ttft_p99_ms=12_000.0, itl_p99_ms=100.0)
)
