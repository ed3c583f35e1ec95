"""The suite's figures of sums over ranks: two processes that share files stand for two GPUs."""

import pytest
import torch

from gpu_suite.machine import Machine
from gpu_suite.rank_sums import NAME, measure
from gpu_suite.record import Absent, Figure


def test_every_way_is_timed_by_size() -> None:
    """And adds up what both ranks hold, or it would be broken."""
    found = list(measure(Machine(is_dry=True)))

    assert all(isinstance(each, Figure) for each in found)
    assert [each.name for each in found] == [
        f"sum of 2 ranks, {size} KiB, {way}"
        for size in ("0.0625", "0.125")
        for way in ("NCCL", "one shot")
    ]


def test_one_gpu_is_skipped_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong with it."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    assert list(measure(Machine(is_dry=False))) == [
        Absent(NAME, "this machine has one GPU, and sums need two")
    ]
