import numpy as np
import pytest

from tune_report.arrivals import arrivals, constant, pieces


@pytest.mark.parametrize("cv", [1.0, 2.5, 5.0])
def test_a_constant_rate_has_its_mean_and_its_burstiness(cv: float) -> None:
    at_s = arrivals(np.random.default_rng(1), constant(20.0), 5000.0, cv)

    gaps = np.diff(at_s)
    assert len(at_s) / 5000.0 == pytest.approx(20.0, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)
    assert at_s[0] >= 0
    assert at_s[-1] < 5000.0


def test_each_piece_has_its_own_rate() -> None:
    at_s = arrivals(np.random.default_rng(1), pieces((0.0, 2.0), (500.0, 20.0)), 1000.0)

    early = int((at_s < 500.0).sum())
    assert early / 500.0 == pytest.approx(2.0, rel=0.1)
    assert (len(at_s) - early) / 500.0 == pytest.approx(20.0, rel=0.05)


def test_the_same_seed_gives_the_same_requests() -> None:
    first, second = (
        arrivals(np.random.default_rng(3), constant(5.0), 100.0, 2.5) for _ in range(2)
    )

    assert first.tolist() == second.tolist()
