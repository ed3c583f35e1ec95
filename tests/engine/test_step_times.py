"""The model of a step's time: it follows its launches, and calls itself a prediction."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from gpu_suite import names, predicted
from step_work import __main__ as command
from step_work import assumed, predictions
from step_work.gpus import GPUS, gpu_named
from step_work.steps import DECODE, IN_GRAPH, MIXED, PREFILL, FakeModel, Step, fake_model
from step_work.times import bandwidth_share, launch_s, num_replays, parts_of, predict, tensor_share
from step_work.work import StepWork, Work, work_of

H100, H200 = GPUS["H100"], GPUS["H200"]


@cache
def model_of(name: str) -> FakeModel:
    """Load each model once."""
    return fake_model(name)


@cache
def work(name: str, step: Step) -> StepWork:
    """Count each step once."""
    return work_of(model_of(name), step)


def one(step: StepWork, label: str) -> Work:
    return next(each for each in step.launches if each.label == label)


@pytest.mark.parametrize("step", [DECODE, MIXED, PREFILL], ids=lambda step: step.name)
def test_a_range_holds_its_prediction_and_no_data_sheet_is_beaten(step: Step) -> None:
    """On no GPU, even with everything at its best."""
    found = work("qwen2.5-0.5b", step)
    for each in GPUS.values():
        times = predict(found, each)
        least_s = max(found.least_bytes / each.bandwidth, found.flops / each.tensor_rate)

        assert least_s < times.best < times.likely < times.worst
        assert 0 < tensor_share(found, each).worst < tensor_share(found, each).best < 1


def test_a_launch_takes_its_bytes_and_a_fixed_time() -> None:
    """Where its FLOPs are few."""
    norm = one(work("llama-3.1-8b", DECODE), "rms_norm")
    moving_s = norm.num_bytes / (H200.bandwidth * assumed.STREAM.likely)

    assert launch_s(norm, H200, "likely") == pytest.approx(moving_s + assumed.LAUNCH_S.likely)


def test_a_steps_parts_are_its_time() -> None:
    """Bytes at the data sheet's rate, what is not reached of it, and what lies between launches."""
    found = work("llama-3.1-8b", DECODE)
    parts = parts_of(found, H200)

    assert parts.sheet_s == pytest.approx(found.num_bytes / H200.bandwidth, rel=1e-3)
    assert 0 < parts.reach_s < parts.sheet_s
    device = len(found.launches) - len(("cpu to cuda", "cuda to cpu"))
    assert parts.gaps_s == pytest.approx(device * assumed.LAUNCH_S.likely, rel=1e-2)
    whole_s = parts.sheet_s + parts.reach_s + parts.gaps_s + parts.replay_s
    assert whole_s == pytest.approx(predict(found, H200).likely)


def test_a_launch_less_a_layer_gains_what_one_costs() -> None:
    """In every layer of a step in a graph."""
    found = work("qwen2.5-0.5b", DECODE)
    then = predict(found, H200, lambda each: each.label == "rope_and_store_kv")
    rope = one(found, "rope_and_store_kv")

    gained = predict(found, H200).likely - then.likely
    assert gained == pytest.approx(24 * launch_s(rope, H200, "likely"))


def test_a_step_without_a_graph_takes_the_hosts_time_where_that_is_longer() -> None:
    """A small model's: the GPU waits for the next launch."""
    found = work("qwen2.5-0.5b", MIXED)
    kernels = sum(each.kind == "kernel" for each in found.launches)
    others = len(found.launches) - kernels

    host_s = kernels * assumed.HOST_KERNEL_S.likely + others * assumed.HOST_OP_S.likely
    assert predict(found, H200).likely == pytest.approx(host_s)


def test_a_mixed_step_in_a_graph_does_not_wait_for_the_host() -> None:
    """One replay, and what lies before and behind it."""
    replayed, eager = work("qwen2.5-0.5b", IN_GRAPH), work("qwen2.5-0.5b", MIXED)

    assert num_replays(replayed.launches) == 1
    assert predict(replayed, H200).likely < 0.7 * predict(eager, H200).likely


def test_decode_attention_needs_enough_under_way() -> None:
    """A loop that copies less ahead reaches less of the bandwidth."""
    attention = one(work("llama-3.1-8b", DECODE), "decode")
    narrow = {**attention.launch.arguments, "TILE_KV": 16}
    alone = (attention.launch.arguments["num_multiprocessors"],)
    slower = replace(attention, launch=replace(attention.launch, arguments=narrow, grid=alone))

    assert bandwidth_share(slower, H200, "likely") < 0.6 * bandwidth_share(
        attention, H200, "likely"
    )


def test_what_was_published_is_within_the_range() -> None:
    """A line of vLLM's for Llama-3.1-8B on an H100: an engine of the same kind."""
    for step, published_ms in ((DECODE, 9.30), (predictions.SINGLE, 6.45)):
        times = predict(work("llama-3.1-8b", step), H100)

        assert 1e3 * times.best < published_ms < 1e3 * times.worst


def test_everything_assumed_has_a_basis_and_a_range() -> None:
    """Times are best where they are short, shares where they are large."""
    for name, each in assumed.EVERYTHING.items():
        low, high = sorted((each.best, each.worst))
        assert low <= each.likely <= high
        assert (each.best <= each.worst) == name.endswith("_S")
        assert each.because


def test_what_is_printed_says_that_it_is_predicted() -> None:
    """Nobody may take it for measured; the launches that a change saves are there."""
    table = predictions.table_of(model_of("qwen2.5-0.5b"))

    assert table.startswith("qwen2.5-0.5b: PREDICTED, nothing of this is measured")
    assert all(change.name in table for change in predictions.CHANGES)


def test_the_suites_steps_are_predicted_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a GPU that the model knows; none for another."""
    monkeypatch.setattr(names, "MODELS", ("qwen2.5-0.5b",))
    monkeypatch.setattr("sys.argv", ["step_work", "--json", "NVIDIA H100 80GB HBM3"])
    command.main()

    told = capsys.readouterr().out
    assert names.step("qwen2.5-0.5b") in told
    assert names.single("qwen2.5-0.5b") in told
    assert gpu_named("NVIDIA H100 80GB HBM3") is H100
    assert gpu_named("NVIDIA L40S") is None


def test_without_predictions_the_page_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the process that predicts fails, measuring goes on."""
    monkeypatch.setattr("sys.executable", "/bin/false")
    predicted.predict("NVIDIA H200", tmp_path)

    assert predicted.read(tmp_path) == ()
    assert "No step is predicted" in capsys.readouterr().out
