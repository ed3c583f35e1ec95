"""What is served: callers with a mix each, on a device with its SLA."""

from dataclasses import dataclass, replace

import numpy as np

from order.lengths import Known
from paceline_sim.hardware import H100_8B
from paceline_sim.requests import Requests
from paceline_tuner.service_spec import SLA
from paceline_wire.limits import Capacity
from tune_report.arrivals import arrivals, constant
from tune_report.mixes import CODE, CONVERSATION, HEAVY_TAIL, REASONING, Lengths, Mix
from tune_report.settings import A100_ITL, CPU_ITL, H100_ITL, ServingSetting

LONG = Mix("long prompts", Lengths(9000, 7600, 64_000, 500), Lengths(400, 300, 1000, 20))
LONG_SETTING = ServingSetting(
    "H100 ITL 60, TTFT 8 s", H100_8B, SLA(ttft_p99_ms=8000.0, itl_p99_ms=60.0), LONG
)


@dataclass(frozen=True, slots=True)
class Case:
    """A pod and the requests of its callers."""

    name: str
    setting: ServingSetting
    callers: tuple[tuple[float, Mix], ...]
    """Each caller's share of the requests, and its mix."""

    @property
    def capacity(self) -> Capacity:
        """Return what the pod allocates."""
        return replace(self.setting.capacity, max_model_len=131_072)

    @property
    def ttft_s(self) -> float:
        """Return the TTFT target."""
        target_ms = self.setting.sla.ttft_p99_ms
        assert target_ms is not None
        return target_ms / 1e3

    def draw(self, seed: int, rps: float, duration_s: float) -> tuple[Requests, list[Known]]:
        """Return the requests, and what is known of each when it arrives."""
        random = np.random.default_rng([seed, 20_231_116])
        at_s = arrivals(random, constant(rps), duration_s)
        shares = np.array([share for share, _ in self.callers])
        caller = random.choice(len(shares), len(at_s), p=shares / shares.sum())
        drawn = [mix.draw(random, len(at_s)) for _, mix in self.callers]
        prompt, output, cached = (
            np.choose(caller, [columns[place] for columns in drawn]) for place in range(3)
        )
        known = [
            Known(caller=str(who), prompt_tokens=int(tokens))
            for who, tokens in zip(caller, prompt, strict=True)
        ]
        return Requests(at_s, prompt, output, cached, np.zeros(len(at_s), np.int8)), known


_THREE = ((0.6, CONVERSATION), (0.3, CODE), (0.1, REASONING))
CASES = (
    Case("conversation, H100", H100_ITL, ((1.0, CONVERSATION),)),
    Case("code, H100", H100_ITL, ((1.0, CODE),)),
    Case("heavy tail, H100", H100_ITL, ((1.0, HEAVY_TAIL),)),
    Case("reasoning, H100", H100_ITL, ((1.0, REASONING),)),
    Case("conversation, code and reasoning, H100", H100_ITL, _THREE),
    Case("conversation, code and reasoning, A100", A100_ITL, _THREE),
    Case("code beside reasoning, H100", H100_ITL, ((0.5, CODE), (0.5, REASONING))),
    Case("long prompts, H100", LONG_SETTING, ((1.0, LONG),)),
    Case(
        "long prompts beside conversation, H100", LONG_SETTING, ((0.3, LONG), (0.7, CONVERSATION))
    ),
    Case("short, CPU", CPU_ITL, ((1.0, CPU_ITL.mix),)),
)
