"""What a model of the step time is good for: the device and the features that it was made on."""

from pathlib import Path

import msgspec
import pytest
import torch

from paceline_engine.loading.identity import cost_features, cpu_name, device_name
from paceline_engine.pacing.prior import prior_for
from paceline_engine.settings import Settings
from paceline_testing.engines import a_model_info


def test_a_gpu_is_named_so_that_its_datasheet_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cuda` alone says nothing of speed: every GPU would start from the same guess."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")

    name = device_name(torch.device("cuda", 0))

    info = a_model_info()
    assert name == "cuda:NVIDIA H200"
    assert not prior_for(msgspec.structs.replace(info, device=name)).is_guess
    assert prior_for(msgspec.structs.replace(info, device="cuda")).is_guess


def test_a_cpus_threads_and_product_are_features(tmp_path: Path) -> None:
    """Step times on one core say little of four, nor those of a laptop of a server."""
    cpu_info = tmp_path / "cpuinfo"
    cpu_info.write_text("processor\t: 0\nmodel name\t: A Server 9000\nmodel name\t: other\n")

    features = cost_features(torch.device("cpu"), Settings(block_size=32), compiled=True)

    assert device_name(torch.device("cpu")) == "cpu"
    assert cpu_name(cpu_info) == "A Server 9000"
    assert cpu_name(tmp_path / "missing")
    assert "block_size=32" in features
    assert f"threads={torch.get_num_threads()}" in features
    assert "ops=compiled" in features
    assert features == sorted(features)
    slower = cost_features(torch.device("cpu"), Settings(), compiled=False)
    assert "ops=torch" in slower


def test_a_gpus_features_hold_nothing_of_the_host() -> None:
    """Two nodes with one kind of GPU share what was learned on either."""
    assert cost_features(torch.device("cuda", 0), Settings(), compiled=False) == ["block_size=16"]
