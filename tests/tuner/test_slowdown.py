"""A device that is slower than it was is reported, whatever the engine's model has taken in."""

import math
import random
from dataclasses import dataclass, field

import pytest

from paceline_testing.telemetry import a_fit, a_limits, a_step
from paceline_tuner.slowdown import Slowdown
from paceline_tuner.telemetry import EngineInfo, Load, ModelFit, Step
from paceline_tuner.window import Evidence

PERIOD_S = 5.0
STEPS = 60
"""Of one period."""
HEALTHY = a_fit(theta=(5.0, 0.02, 0.01, 0.05, 1.0))


@dataclass
class Device:
    """Runs steps of a few shapes, `factor` times as long as a healthy one, and some noise."""

    factor: float = 1.0
    tokens: tuple[int, int] = (20, 600)
    noise: float = 0.03
    model: ModelFit = HEALTHY
    seed: int = 1
    now: float = 1000.0
    seq: int = 0
    window: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def period(self) -> Evidence:
        """Let one decision period pass."""
        for index in range(STEPS):
            total = self.random.choice(self.tokens)
            self.seq += 1
            at = self.now + PERIOD_S * (index + 1) / STEPS
            self.window.append(self._step(at, total))
        self.now += PERIOD_S
        return self._evidence()

    def idle(self) -> Evidence:
        """Let one period pass in which nothing runs."""
        self.now += PERIOD_S
        return self._evidence()

    def _step(self, at: float, total: int) -> Step:
        th0, th1, th2, th3, _ = HEALTHY.theta
        context = 200 * total
        # A bend that the fitted line does not know: three in ten more for a large step.
        bend = 1.3 if total > 256 else 1.0
        ms = bend * (th0 + th1 * total + th2 * max(0, total - 256) + th3 * context / 1e3)
        wall_ms = ms * self.factor * math.exp(self.random.gauss(0, self.noise))
        return a_step(self.seq, at, decode=total, context=context, wall_ms=wall_ms)

    def _evidence(self) -> Evidence:
        self.window = [step for step in self.window if step.at > self.now - 60]
        return Evidence(
            now=self.now,
            instance="a",
            ready=True,
            limits=a_limits(),
            load=Load(running=8, waiting=0, waiting_tokens=0),
            model=self.model,
            info=EngineInfo(),
            window_s=60.0,
            steps=tuple(self.window),
            requests=(),
            slices=(),
        )


def watched(device: Device, seconds: float, slowdown: Slowdown) -> Slowdown:
    for _ in range(int(seconds / PERIOD_S)):
        slowdown = slowdown.observe(device.period())
    return slowdown


@pytest.mark.parametrize("seed", range(5))
def test_a_hot_neighbour_is_told_within_a_minute_and_withdrawn_after(seed: int) -> None:
    """A third slower for minutes; the engine's own fit follows it at once."""
    device = Device(seed=seed)
    before = watched(device, 300, Slowdown())
    device.factor = 1.35
    device.model = a_fit(theta=tuple(1.35 * th for th in HEALTHY.theta))

    during = watched(device, 60, before)
    lasting = watched(device, 600, during)
    device.factor = 1.0
    after = watched(device, 60, lasting)

    assert [s.is_slow for s in (before, during, lasting, after)] == [False, True, True, False]
    assert lasting.ratio == pytest.approx(1.35, rel=0.05)


def test_a_clock_that_sinks_slowly_is_told() -> None:
    """A card that grows warm over ten minutes: no period is much slower than the one before."""
    device = Device()
    slowdown = watched(device, 300, Slowdown())

    for _ in range(120):
        device.factor += 0.3 / 120
        slowdown = slowdown.observe(device.period())
    slowdown = watched(device, 30, slowdown)

    assert slowdown.is_slow


@pytest.mark.parametrize("noise", [0.03, 0.1], ids=["GPU", "shared cores"])
def test_noise_and_a_new_load_are_no_slow_device(noise: float) -> None:
    """Steps of kinds that were never seen are learned, not blamed on the device."""
    device = Device(noise=noise)
    slowdown = watched(device, 300, Slowdown())
    device.tokens = (80, 900)

    for _ in range(720):
        slowdown = slowdown.observe(device.period())

        assert not slowdown.is_slow


def test_a_slow_device_stays_one_under_a_new_load() -> None:
    """What is learned of new kinds of steps is learned at the present pace."""
    device = Device()
    slowdown = watched(device, 300, Slowdown())
    device.factor = 1.35
    slowdown = watched(device, 60, slowdown)
    device.tokens = (80, 900)

    slowdown = watched(device, 300, slowdown)

    assert slowdown.is_slow
    assert slowdown.ratio == pytest.approx(1.35, rel=0.07)


def test_a_device_that_was_slow_from_the_start_becomes_the_usual_one() -> None:
    """Without a warm start nobody can tell yet; the next slowdown is reported."""
    device = Device(factor=1.4)
    slowdown = watched(device, 300, Slowdown())
    device.factor = 1.0
    well = watched(device, 60, slowdown)
    device.factor = 1.4
    again = watched(device, 60, well)

    assert [s.is_slow for s in (slowdown, well, again)] == [False, False, True]


@pytest.mark.parametrize(("factor", "is_slow"), [(1.0, False), (1.4, True)])
def test_a_new_pod_is_compared_with_what_pods_of_its_kind_have_proven(
    factor: float, *, is_slow: bool
) -> None:
    """A pod that lands on a slow node has no better past of its own."""
    device = Device(factor=factor)
    slowdown = Slowdown()
    proven = a_fit(theta=HEALTHY.theta, correction=(1.0, 1.0, *(1.3,) * 15))

    for _ in range(24):
        slowdown = slowdown.observe(device.period(), remembered=proven)

    assert slowdown.is_slow is is_slow


def test_an_idle_device_keeps_its_verdict() -> None:
    """Without a step there is nothing to compare."""
    device = Device()
    slowdown = watched(device, 300, Slowdown())
    device.factor = 1.35
    slowdown = watched(device, 60, slowdown)

    for _ in range(60):
        slowdown = slowdown.observe(device.idle())

    assert slowdown.is_slow


def test_a_model_that_is_not_trusted_is_no_reference() -> None:
    """Its shape may be anything."""
    device = Device(model=a_fit(valid=False))

    assert watched(device, 60, Slowdown()).reference is None
