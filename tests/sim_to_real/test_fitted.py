"""A device fitted from an engine's own records tells what its steps cost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_sim.hardware import CPU_135M, Hardware, Noise, StepCosts
from paceline_sim.simulated_engine import SimulatedEngine
from paceline_testing.simulated import a_crowd
from paceline_tuner.telemetry import CapacityValues, EngineInfo, Step
from paceline_wire.limits import Limits
from sim_to_real.fitted import ProfileError, profiled
from sim_to_real.shape import told_ms

INFO = EngineInfo(name="a", num_parameters=1, weight_bytes=2, kv_bytes_per_token=3, device="cpu")
CAPACITY = CapacityValues(64, 2048, 4096, 16, 2048)
QUIET = Noise(sigma=0.0, correlation=0.0, spike_chance=0.0)
PLAIN = StepCosts(0.01, 0.0, 1.0, 0.0, 1.0, 2e-5, 1, 0.5, 3.0, 1)


def steps_of(hardware: Hardware, *, seed: int = 0) -> list[Step]:
    """What a simulated engine of this hardware tells under limits of every kind."""
    found: list[Step] = []
    for index, (batch, budget) in enumerate(((32, 1024), (32, 192), (16, 64), (4, 16))):
        engine = SimulatedEngine(
            hardware,
            a_crowd(0.5, 120.0, seed=10 * seed + index),
            capacity=hardware.capacity(max_batch_size=64, max_token_budget=2048),
            limits=Limits(batch, budget),
            pacer=None,
            seed=seed,
        )
        engine.run_until(300.0)
        width = len(Step.__struct_fields__)
        found += [Step(*fields[:width]) for fields in engine.steps.tolist()]
    return found


def test_a_device_of_the_fitted_form_is_found_again() -> None:
    """Straight table, no noise: what was not fitted to is told to within a hundredth."""
    table = 20.0 + 0.9 * np.arange(32_769, dtype=np.float64)
    device = replace(CPU_135M, dense_ms=table, costs=PLAIN, noise=QUIET)

    profile = profiled(steps_of(device), INFO, CAPACITY)

    others = steps_of(device, seed=1)
    wall = np.array([step.wall_ms for step in others])
    assert np.mean(np.abs(told_ms(profile.hardware, others) / wall - 1)) < 0.01
    assert profile.error < 0.01
    assert profile.hardware.noise.sigma < 0.01
    assert profile.hardware.num_kv_tokens == 4096 * 16


def test_a_device_with_stairs_and_noise_is_told_to_within_its_noise() -> None:
    """The simulated engine's own CPU has tiles, bent attention and 8 % of noise."""
    profile = profiled(steps_of(CPU_135M), INFO, CAPACITY)

    quiet = steps_of(replace(CPU_135M, noise=QUIET), seed=1)
    wall = np.array([step.wall_ms for step in quiet])
    assert np.mean(np.abs(told_ms(profile.hardware, quiet) / wall - 1)) < 0.05
    assert profile.hardware.noise.sigma == pytest.approx(0.08, abs=0.03)
    assert profile.hardware.noise.correlation == pytest.approx(0.7, abs=0.2)


def test_spikes_are_told_apart_from_noise_and_do_not_move_the_table() -> None:
    table = 20.0 + 0.9 * np.arange(32_769, dtype=np.float64)
    spiky = Noise(sigma=0.02, correlation=0.0, spike_chance=0.05, spike=(2.0, 3.0))
    device = replace(CPU_135M, dense_ms=table, costs=PLAIN, noise=spiky)

    found = profiled(steps_of(device), INFO, CAPACITY).hardware

    assert found.noise.spike_chance == pytest.approx(0.05, abs=0.02)
    assert 1.8 < found.noise.spike[0] <= found.noise.spike[1] < 3.2
    assert found.dense_ms[64] == pytest.approx(table[64], rel=0.1)


@settings(max_examples=20, deadline=None)
@given(
    walls=st.lists(
        st.floats(min_value=0.1, max_value=1e4, allow_nan=False), min_size=100, max_size=150
    ),
    seed=st.integers(0, 99),
)
def test_whatever_is_recorded_the_table_never_falls_and_no_cost_is_negative(
    walls: list[float], seed: int
) -> None:
    random = np.random.default_rng(seed)
    steps = [
        Step(
            seq=index,
            at=float(index),
            wall_ms=wall,
            decode=int(random.integers(0, 33)),
            prefill=int(random.integers(1, 600)),
            context=int(random.integers(0, 5000)),
            attention=int(random.integers(0, 100_000)),
            running=1,
            waiting=0,
        )
        for index, wall in enumerate(walls)
    ]

    hardware = profiled(steps, INFO, CAPACITY).hardware

    assert np.all(np.diff(hardware.dense_ms) >= 0)
    assert np.all(np.isfinite(hardware.dense_ms))
    costs = hardware.costs
    assert min(costs.context_ms, costs.pair_ms, costs.row_ms, costs.mixed_ms) >= 0


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ProfileError, match="at least 100 clean steps are needed, got 0"):
        profiled([], INFO, CAPACITY)
