"""A settled pacer allows what the engine's own would, were its model the device."""

from dataclasses import replace
from random import Random

import numpy as np

from paceline_engine.pacing import StepShape
from paceline_engine.pacing.lane_pace import step_allowance_ms
from paceline_engine.pacing.residuals import Residuals
from paceline_engine.pacing.totals import Totals
from paceline_sim.hardware import MAX_STEP_TOKENS, Hardware
from paceline_sim.simulated_engine import SettledPacer
from paceline_sim.steps import settled_total
from paceline_testing.simulated import PLAIN, an_engine
from paceline_wire.limits import Limits
from paceline_wire.step_cost import StepFeatures, StepModel

MODEL = StepModel((8.0, 0.01, 0.04, 0.06, 0.9), 256)
Q_R = 1.1


def the_devices_own(model: StepModel) -> Hardware:
    """A device of which the model is true."""
    tokens = range(MAX_STEP_TOKENS + 1)
    line = [model.ms(StepFeatures(0, count, 0, 0)) for count in tokens]
    costs = replace(PLAIN.costs, context_ms=model.theta[3] * 1e-3, pair_ms=model.theta[4] * 1e-6)
    return replace(PLAIN, dense_ms=np.array(line), costs=costs)


def test_it_allows_as_many_tokens_as_the_engines_pacer() -> None:
    """For any step, target, pace and slack."""
    random = Random(1)
    hardware = the_devices_own(MODEL)

    for _ in range(500):
        budget, decode = random.randint(64, 2048), random.randint(1, 64)
        target_ms, pace_ms = random.uniform(5, 60), random.choice([None, random.uniform(10, 60)])
        slack_ms = random.uniform(-50, 200) if pace_ms is not None else None
        prompts = [(random.randint(1, 4000), random.randint(0, 4000))] * random.randint(0, 3)
        shape = StepShape(decode, decode * random.randint(1, 4000), 9999, prompts)
        engine = an_engine(
            [], hardware=hardware, budget=budget, pacer=SettledPacer(Q_R, min_prefill=16),
            limits=Limits(64, budget, step_target_ms=target_ms, pace_tpot_ms=pace_ms),
        )  # fmt: skip
        totals = engine._totals
        totals["decode"], totals["context"] = shape.decode, shape.context
        totals["prompts"] = len(prompts)
        engine._arrays.ahead[: len(prompts)] = np.array(prompts).reshape(-1, 2)
        totals["slack_ms"] = np.nan if slack_ms is None else slack_ms

        allowed = settled_total(engine._arrays)

        wanted_ms = target_ms if pace_ms is None else step_allowance_ms(slack_ms, pace_ms)
        most = Totals(MODEL, Residuals(2048, 64), shape, wanted_ms / Q_R).most(budget)
        assert allowed == max(most, min(decode + 16, budget))


def test_paced_steps_keep_their_target_and_finish_prompts_later() -> None:
    """What a step target is for."""
    rows = [(0.0, 10, 50), (0.2, 400, 1)]

    free = an_engine(rows, budget=1000)
    paced = an_engine(
        rows, budget=1000, pacer=SettledPacer(1.0, min_prefill=16),
        limits=Limits(64, 1000, step_target_ms=12.0),
    )  # fmt: skip

    for engine in (free, paced):
        engine.run_until(10.0)
    slowest_free, slowest_paced = (
        engine.steps["wall_ms"][engine.steps["decode"] > 0].max() for engine in (free, paced)
    )
    assert slowest_free > 13.9
    assert slowest_paced <= 12.0
    assert paced.ttft_ms[1] > free.ttft_ms[1]
