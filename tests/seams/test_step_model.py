"""Engine and operator read the same step model alike."""

import random

import msgspec
import pytest

from paceline_engine.pacing import make_pacer
from paceline_testing.engines import a_135m_info
from paceline_tuner.forecast import Forecast
from paceline_tuner.telemetry import ModelFit
from paceline_wire import MeasuredStep, StepFeatures
from paceline_wire.limits import Capacity


@pytest.mark.parametrize("device", ["cpu", "cuda:NVIDIA H100"])
def test_the_operator_forecasts_what_the_engine_predicts(device: str) -> None:
    """Stairs between sizes lie where the engine learned them: every size of a small step."""
    pacer = make_pacer(a_135m_info(device), Capacity(64, 4096, 1000, 16, 4096))
    rng = random.Random(4)
    for seq in range(2000):
        decode, prefill = rng.randint(1, 12), rng.choice([0, 0, 40, 300])
        rows = -(-(decode + prefill) // 4)
        wall_ms = 20.0 + 4.0 * rows
        step = MeasuredStep(decode, prefill, context=decode * 200, attention=0, wall_ms=wall_ms)
        pacer.observe(step, at=seq * 0.05)

    fitted = pacer.info()
    forecast = Forecast(msgspec.convert(msgspec.structs.asdict(fitted), ModelFit))

    ratios = []
    for decode in range(1, 600):
        predicted_ms = pacer.predict_ms(
            StepFeatures(decode=decode, prefill=0, context=4000, attention=0)
        )
        ratios.append(predicted_ms / forecast.step_ms(decode=decode, prefill=0, context=4000))
    # What the last step says of the next is the engine's alone, and the same for all sizes.
    assert max(ratios) == pytest.approx(min(ratios))
    assert len(set(fitted.correction)) > 1
