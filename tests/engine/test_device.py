"""What the engine runs on, and the one sentence with which it refuses what cannot serve."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline_engine.core.model_config import ModelConfig, Rope
from paceline_engine.errors import BadSettings, DoesNotFit, UnsupportedDevice, UnsupportedModel
from paceline_engine.loading import load
from paceline_engine.loading.device import (
    HostMachine,
    VisibleGpu,
    choose_device,
    look,
    require_kernels_cover,
)
from paceline_engine.settings import Settings
from paceline_testing.tiny_model import make_tiny_model

H200 = VisibleGpu("H200", (9, 0))
A100 = VisibleGpu("A100", (8, 0))
T4 = VisibleGpu("Tesla T4", (7, 5))
NO_GPU = HostMachine(cuda="13.2")
BROKEN = replace(NO_GPU, has_driver=True, driver="470.1", complaint="the driver is too old.")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
MODEL = ModelConfig(
    family="llama",
    num_layers=1,
    hidden_size=64,
    intermediate_size=64,
    num_q_heads=16,
    num_kv_heads=1,
    head_size=256,
    vocab_size=10,
    max_len=16,
    norm_eps=1e-5,
    rope=Rope(theta=1e4),
    tied_head=True,
)


def _on(*gpus: VisibleGpu) -> HostMachine:
    return HostMachine(gpus=gpus, cuda="13.2", has_driver=True)


@pytest.mark.parametrize(
    ("device", "machine", "chosen"),
    [
        ("auto", NO_GPU, "cpu"),
        ("auto", replace(BROKEN, cuda=None), "cpu"),
        ("auto", replace(BROKEN, is_hidden=True), "cpu"),
        ("auto", _on(H200), "cuda:0"),
        ("cuda", _on(H200), "cuda:0"),
        ("cpu", _on(H200), "cpu"),
        ("cpu", _on(T4), "cpu"),
        ("cpu", BROKEN, "cpu"),
    ],
    ids=[
        "no GPU",
        "a torch for CPUs",
        "a GPU that somebody hid",
        "a GPU",
        "a GPU that was asked for",
        "a GPU that nobody wants",
        "an old GPU that nobody wants",
        "a broken driver that nobody wants",
    ],
)
def test_the_best_device_that_was_asked_for_is_chosen(
    device: Any, machine: HostMachine, chosen: str
) -> None:
    """A GPU where there is one, unless somebody decided otherwise."""
    assert str(choose_device(Settings(device=device), machine)) == chosen


def test_graphs_are_refused_on_a_cpu() -> None:
    """Whoever asked for them believes to have a GPU; left to itself the engine has none there."""
    with pytest.raises(BadSettings, match="PACELINE_ENGINE_GRAPHS is on, which needs a GPU"):
        choose_device(Settings(graphs="on"), NO_GPU)
    assert choose_device(Settings(graphs="on"), _on(H200)).type == "cuda"
    assert choose_device(Settings(), NO_GPU).type == "cpu"


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("back_end", ["triton", "sdpa"])
def test_a_back_end_of_a_gpu_is_refused_on_a_cpu(device: Any, back_end: Any) -> None:
    """Whoever chose one believes to have a GPU."""
    wanted = Settings(device=device, prefill_attention=back_end)

    with pytest.raises(BadSettings, match=f"ATTENTION is {back_end}, which is for a GPU"):
        choose_device(wanted, NO_GPU)
    assert choose_device(Settings(prefill_attention=back_end), _on(H200)).type == "cuda"


def test_each_rank_has_a_gpu_of_its_own() -> None:
    """The second rank takes the second."""
    settings = Settings(tensor_parallel_size=2)

    assert str(choose_device(settings, _on(H200, A100), rank=1)) == "cuda:1"
    with pytest.raises(UnsupportedDevice, match="Tesla T4"):
        choose_device(settings, _on(H200, T4), rank=1)
    with pytest.raises(BadSettings, match="SIZE is 2, but torch finds 1 CUDA devices"):
        choose_device(settings, _on(H200))


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_gpu_that_is_too_old_is_refused(device: Any) -> None:
    """Serving from the CPU beside it would surprise whoever pays for it."""
    with pytest.raises(UnsupportedDevice) as refusal:
        choose_device(Settings(device=device), _on(T4))

    assert refusal.value.message == (
        "The kernels need a GPU of compute capability 8.0 or newer, got 7.5 (Tesla T4); "
        "PACELINE_ENGINE_DEVICE=cpu serves without it."
    )


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_driver_that_torch_cannot_use_is_refused(device: Any) -> None:
    """Both versions are named, and what torch said."""
    with pytest.raises(UnsupportedDevice) as refusal:
        choose_device(Settings(device=device), BROKEN)

    assert refusal.value.message == (
        "NVIDIA's driver 470.1 is there, but torch, built for CUDA 13.2, finds no device: the "
        "driver is too old; it needs a driver for CUDA 13.2 and a GPU that it shows, or "
        "PACELINE_ENGINE_DEVICE=cpu serves without it."
    )


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        (NO_GPU, "torch finds no CUDA device: there is no GPU"),
        (replace(BROKEN, is_hidden=True), "CUDA_VISIBLE_DEVICES hides every GPU"),
        (replace(BROKEN, cuda=None), "built for CPUs alone"),
    ],
    ids=["no GPU", "hidden", "a torch for CPUs"],
)
def test_a_gpu_that_is_asked_for_must_be_there(machine: HostMachine, says: str) -> None:
    """The sentence names what is missing."""
    with pytest.raises(BadSettings, match=f"PACELINE_ENGINE_DEVICE is cuda.*{says}"):
        choose_device(Settings(device="cuda"), machine)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_products_of_fp8_with_fp8_are_bfloat16(dtype: Any) -> None:
    """On a CPU they may be float32: there they are for who compares."""
    wanted = Settings(quantization="fp8_dynamic", dtype=dtype)

    with pytest.raises(BadSettings, match=f"DTYPE must be auto or bfloat16, got {dtype}"):
        choose_device(wanted, _on(H200))
    assert choose_device(wanted, NO_GPU) == CPU
    assert choose_device(Settings(quantization="fp8_dynamic"), _on(H200)).type == "cuda"


def test_products_of_a_draft_are_named_as_the_drafts() -> None:
    """Whoever reads it changes the setting that it names."""
    wanted = Settings(
        speculative="draft",
        draft_model_uri="builtin://small",
        draft_quantization="fp8_dynamic",
        dtype="float16",
    )

    with pytest.raises(BadSettings, match="PACELINE_ENGINE_DRAFT_QUANTIZATION is fp8_dynamic"):
        choose_device(wanted, _on(H200))


def test_a_draft_in_fp8_needs_a_gpu_that_knows_it() -> None:
    """As the model itself does."""
    wanted = Settings(
        speculative="draft", draft_model_uri="builtin://small", draft_quantization="fp8"
    )

    with pytest.raises(BadSettings, match=r"DRAFT_QUANTIZATION is fp8, .* 8\.9 or newer, got 8\.0"):
        choose_device(wanted, _on(A100))


def test_products_of_fp8_with_fp8_need_a_gpu_that_knows_it() -> None:
    """As weights in FP8 do."""
    with pytest.raises(BadSettings, match=r"is fp8_dynamic, .* 8\.9 or newer, got 8\.0"):
        choose_device(Settings(quantization="fp8_dynamic"), _on(A100))


@pytest.mark.parametrize("setting", ["kv_cache_dtype", "quantization"])
def test_a_gpu_that_does_not_know_fp8_is_refused(setting: str) -> None:
    """Before the weights are read; Triton would fail at its first launch."""
    fp8 = Settings.model_validate({setting: "fp8"})

    choose_device(Settings(), _on(A100))
    choose_device(fp8, _on(H200))
    choose_device(fp8, _on(VisibleGpu("L4", (8, 9))))
    with pytest.raises(BadSettings, match=rf"{setting.upper()} is fp8, .* 8\.9 or newer, got 8\.0"):
        choose_device(fp8, _on(A100))


@pytest.mark.parametrize(
    ("uncovered", "says"),
    [
        (replace(MODEL, head_size=258), "head_dim must be at most 256 on a GPU, got 258"),
        (
            replace(MODEL, num_q_heads=17),
            "at most 16 times num_key_value_heads on a GPU, got 17 and 1",
        ),
        (
            replace(MODEL, vocab_size=524_289),
            "vocab_size must be at most 524288 on a GPU, got 524289",
        ),
    ],
    ids=["head size", "group", "vocabulary"],
)
def test_a_model_that_no_kernel_covers_is_refused(uncovered: ModelConfig, says: str) -> None:
    """Before an hour of loading; a CPU computes any."""
    require_kernels_cover(MODEL, CUDA)
    require_kernels_cover(uncovered, CPU)
    with pytest.raises(UnsupportedModel, match=says):
        require_kernels_cover(uncovered, CUDA)


def test_hidden_gpus_are_seen_to_be_hidden() -> None:
    """An empty list of devices, or -1, is how CUDA is told to show none."""
    assert look({"CUDA_VISIBLE_DEVICES": ""}).is_hidden
    assert look({"CUDA_VISIBLE_DEVICES": "-1"}).is_hidden
    assert not look({"CUDA_VISIBLE_DEVICES": "0"}).is_hidden
    assert not look({}).is_hidden


def test_memory_that_ends_while_loading_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a step takes is an estimate: where it is wrong, the settings to lower are named."""
    make_tiny_model(tmp_path, "llama")
    settings = Settings(model_uri=f"file://{tmp_path}", device="cpu", kv_cache_bytes=1 << 20)

    def exhaust(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(load, "warm_up", exhaust)
    with pytest.raises(DoesNotFit, match=r"Lower PACELINE_ENGINE_KV_CACHE_MEMORY_FRACTION \(0.9\)"):
        load.load_model(settings, lambda _stage, _fraction: None)
