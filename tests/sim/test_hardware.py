"""The step times: plausible, with stairs, and not of the form that the pacer fits."""

from dataclasses import astuple

import numpy as np
import pytest

from paceline_sim.hardware import A100_8B, CPU_135M, H100_8B, H100_70B_TP4, Hardware, Noise
from paceline_sim.noise import noise_factors
from paceline_sim.published import A100_8B_PROFILED
from paceline_sim.steps import step_ms
from paceline_wire.step_cost import step_terms

EVERY = [H100_8B, A100_8B, A100_8B_PROFILED, H100_70B_TP4, CPU_135M]
BY_NAME = {hardware.name: hardware for hardware in EVERY}


@pytest.fixture(params=list(BY_NAME))
def hardware(request: pytest.FixtureRequest) -> Hardware:
    return BY_NAME[request.param]


def ms(hardware: Hardware, *, decode: int = 0, prefill: int = 0, context: int = 0) -> float:
    """A step of one prompt that starts at 0."""
    costs = np.array(astuple(hardware.costs), np.float64)
    attention, sequences = prefill * prefill // 2, decode + (prefill > 0)
    return step_ms(hardware.dense_ms, costs, decode, prefill, context, attention, sequences)


def test_a_table_never_falls(hardware: Hardware) -> None:
    """One token more never takes less time."""
    assert np.all(np.diff(hardware.dense_ms) >= 0)


@pytest.mark.parametrize("name", ["H100_8B", "A100_8B", "H100_70B_TP4"])
def test_a_gpus_table_has_stairs(name: str) -> None:
    """The first token of a tile of 128 costs more than all others of that tile together."""
    table = BY_NAME[name].dense_ms
    rises = np.diff(table)
    stairs = [rises[k] for k in range(1024, 4096, 128)]
    flats = [rises[k + 1 : k + 128].sum() for k in range(1024, 4096, 128)]

    assert sum(rise > 2 * flat for rise, flat in zip(stairs, flats, strict=True)) >= 8


def test_no_fitted_line_explains_it(hardware: Hardware) -> None:
    """The best line of the pacer's form, fitted to the noiseless times themselves, is off."""
    largest = 512 if hardware is CPU_135M else 4096
    chance = np.random.default_rng(0)
    rows, times = [], []
    for _ in range(2000):
        decode, prefill = int(chance.integers(0, 200)), int(chance.integers(0, largest))
        prefill *= bool(chance.random() < 0.7)
        if decode + prefill == 0:
            continue
        context = decode * int(chance.integers(50, 3000))
        times.append(ms(hardware, decode=decode, prefill=prefill, context=context))
        pairs = prefill * prefill // 2
        tokens = decode + prefill
        rows.append(step_terms(256, tokens, context, pairs))
    relative = np.array(rows) / np.array(times)[:, None]
    theta, *_ = np.linalg.lstsq(relative, np.ones(len(times)), rcond=None)
    errors = np.abs(relative @ theta - 1)

    assert errors.mean() > 0.015
    assert np.quantile(errors, 0.99) > 0.05


def test_published_figures_are_met() -> None:
    """Decode of one and of 64 sequences, context and prefill of Llama-3.1-8B on an H100."""
    one = ms(H100_8B, decode=1, context=200)
    many = ms(H100_8B, decode=64, context=64 * 200)
    deeper = ms(H100_8B, decode=64, context=164 * 1000) - ms(H100_8B, decode=64, context=64 * 1000)

    assert one == pytest.approx(6.7, abs=0.5)  # 6.44 (vLLM's blog), 7.0 (llm-d WVA)
    assert many == pytest.approx(8.7, rel=0.15)  # llm-d WVA
    assert deeper / 100_000 == pytest.approx(4.37e-5, rel=0.25)  # vLLM's blog
    assert ms(H100_8B, prefill=2048) / 2048 == pytest.approx(0.0255, rel=0.1)


def test_a_decode_step_is_padded_to_its_graph() -> None:
    """33 decodes compute what 40 do; with a prompt beside them they do not."""
    table = H100_8B.dense_ms
    padded = ms(H100_8B, decode=33) - 33 * H100_8B.costs.row_ms

    assert padded == pytest.approx(table[40])


def test_context_is_dearer_in_a_small_batch() -> None:
    """The same tokens read by one sequence and by a hundred."""
    alone = ms(H100_8B, decode=1, context=50_000) - ms(H100_8B, decode=1)
    shared = ms(H100_8B, decode=100, context=50_000) - ms(H100_8B, decode=100)

    assert alone > 1.2 * shared


def test_noise_is_what_it_says() -> None:
    """Spread, correlation and spikes, of a hundred thousand steps."""
    noise = Noise(sigma=0.05, correlation=0.7, spike_chance=0.01, spike=(2.0, 3.0))
    factors = noise_factors(noise, 3, 100_000)
    calm = np.log(noise_factors(Noise(0.05, 0.7, 0.0), 3, 100_000))

    assert calm.std() == pytest.approx(0.05, rel=0.05)
    assert np.corrcoef(calm[1:], calm[:-1])[0, 1] == pytest.approx(0.7, abs=0.02)
    assert np.mean(factors > 1.6) == pytest.approx(0.01, rel=0.15)


def test_longer_noise_begins_with_the_shorter() -> None:
    """Or a run would depend on how much room its records had."""
    short, long = (noise_factors(H100_8B.noise, 5, count) for count in (100, 1000))

    assert short.tolist() == long[:100].tolist()
