"""Users who ask again and again."""

import asyncio

import numpy as np

from paceline_tuner.service_spec import SLA
from published_knees.devices import H100_70B_FP8, Speed
from published_knees.load import COME_BACK_S, users
from published_knees.pod import Serving


def serving(rows: int, sla: SLA | None = None) -> Serving:
    hardware = H100_70B_FP8.hardware(Speed(17.0, 74.0, 15.0), rows * 256)
    return Serving(hardware, rows, 2048, 1024, sla)


def test_everyone_asks_again_after_an_answer() -> None:
    """By Little's law users are answers a second times the seconds of one."""
    served = asyncio.run(users(serving(8), 4, (128, 64), begin_s=20.0, end_s=60.0, seed=1))

    assert not np.isnan(served.ttft_ms).any()
    seconds_each = np.mean(served.ttft_ms + 63 * served.tpot_ms) / 1e3
    in_engine = len(served.ttft_ms) / served.seconds * seconds_each
    assert abs(in_engine - 4) < 0.2


def test_a_refused_user_comes_back_later() -> None:
    """With two rows for six users some are refused, each at most once in ten seconds."""
    sla = SLA(ttft_p99_ms=200.0, tpot_p99_ms=100.0)
    served = asyncio.run(users(serving(2, sla), 6, (128, 200), begin_s=20.0, end_s=80.0, seed=1))

    num_refused = int(np.isnan(served.ttft_ms).sum())
    assert 0 < num_refused <= 6 * (served.seconds / COME_BACK_S + 1)
