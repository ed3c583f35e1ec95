"""Decodes whose products norm, gate and sum up give the tokens of those that do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline_engine.engine.engine import Engine
from paceline_engine.loading.row_trial import choose_row_products
from paceline_engine.lora.slots import LoraAdapters
from paceline_engine.model import row_stages
from paceline_engine.model.row_stages import PLANS, RowProducts, RowStages, possible_plans
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.runner.graph_capture import CudaGraphCapture, Replay
from paceline_engine.runner.model_runner import ModelRunner
from paceline_kernels import add_row_product, row_product
from paceline_testing.clock import ManualClock
from paceline_testing.engines import a_capacity, a_model_info
from paceline_testing.fake_gpu_model import a_request, a_step, load_on_fake_gpu
from paceline_testing.kernel_runner import kernel_runner
from paceline_testing.recompute_capture import RecomputeCapture
from paceline_testing.tiny_model import Family, make_tiny_model
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits

CAPACITY = a_capacity(max_batch_size=8, max_token_budget=48, num_blocks=60, max_model_len=64)
GEMMA = {"sliding_window": 9, "head_dim": 16, "query_pre_attn_scalar": 24}
MODELS: dict[str, tuple[Family, dict[str, Any], int]] = {
    "llama": ("llama", {}, len(PLANS)),
    "qwen2": ("qwen2", {}, len(PLANS)),
    "qwen3": ("qwen3", {"head_dim": 16}, len(PLANS)),
    "gemma2": ("gemma2", GEMMA, 1),
    "gemma3": ("gemma3_text", GEMMA | {"sliding_window_pattern": 3}, 1),
}
"""The last: how many plans the form of its layers allows; with norms behind products, the gate."""


def tokens_of(runner: ModelRunner) -> dict[str, list[int]]:
    """Serve some requests to their ends."""
    engine = Engine(
        runner,
        a_model_info(vocab_size=300),
        CAPACITY,
        NoPacer(),
        limits=Limits(CAPACITY.max_batch_size, CAPACITY.max_token_budget),
        clock=ManualClock(),
    )
    for number, length in enumerate((3, 20, 9, 12, 5)):
        prompt = [(7 * place + number) % 300 for place in range(length)]
        engine.submit(Submit(str(number), prompt, Sampling(10, temperature=0.0, ignore_eos=True)))
    answers: dict[str, list[int]] = {}
    while not engine.is_idle:
        for output in engine.step():
            answers.setdefault(output.id, []).extend(output.token_ids)
    return answers


@pytest.mark.parametrize("model", MODELS)
def test_graphs_give_the_same_tokens(model: str, tmp_path: Path) -> None:
    """In every family; sums are of float32, so that no tie is near."""
    family, config, num_plans = MODELS[model]
    make_tiny_model(tmp_path, family, **config)

    fused = kernel_runner(tmp_path, CAPACITY, graphs=True, fuses=True)

    assert len(possible_plans(fused._decoder)) == num_plans
    assert tokens_of(fused) == tokens_of(kernel_runner(tmp_path, CAPACITY, graphs=False))


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: "+".join(sorted(plan)))
def test_each_plan_computes_what_the_separate_ops_do(
    plan: row_stages.Fusions, tmp_path: Path
) -> None:
    """Between two attentions, and behind the last."""
    make_tiny_model(tmp_path, "qwen2")
    decoder = kernel_runner(tmp_path, CAPACITY, graphs=False, fuses=True)._decoder
    stages = RowStages(decoder, plan, row_stages.counters(decoder))
    config = decoder.config
    attended = torch.randn(5, config.num_q_heads * config.head_size)
    residual = torch.randn(5, config.hidden_size)

    for seen, wanted in zip(
        (*stages.between(0, attended, residual), stages.finish(attended, residual)),
        (*decoder.between(0, attended, residual), decoder.finish(attended, residual)),
        strict=True,
    ):
        torch.testing.assert_close(seen, wanted, rtol=1e-4, atol=1e-4)


def test_quantized_weights_are_not_fused(tmp_path: Path) -> None:
    """They have products of their own."""
    make_tiny_model(tmp_path, "llama")
    runner = kernel_runner(tmp_path, CAPACITY, graphs=False, fuses=True, quantization="int8")

    assert possible_plans(runner._decoder) == ()


def test_a_step_with_adapters_has_products_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each size is captured with adapters and without: only the second is fused."""
    make_tiny_model(tmp_path, "llama")
    rows: list[int] = []

    def counted(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        rows.append(len(x))
        return row_stages_product(x, *args, **kwargs)

    row_stages_product = row_product
    monkeypatch.setattr(row_stages, "row_product", counted)
    runner = kernel_runner(
        tmp_path, CAPACITY, graphs=False, fuses=True, adapters=LoraAdapters(2, 8)
    )
    capture = RecomputeCapture()
    runner.capture_decodes(capture, [4], lambda _fraction: None)

    layers = runner._decoder.config.num_layers
    assert capture.num_captured == 2
    assert rows == [4] * (2 * layers - 1)


def a_trial(
    folder: Path, seconds_of: Callable[[Replay], float], *, max_batch_size: int = 70
) -> RowProducts | None:
    decoder = kernel_runner(
        folder, CAPACITY, graphs=False, fuses=True, dtype=torch.bfloat16
    )._decoder
    return choose_row_products(
        "auto", decoder, max_batch_size, RecomputeCapture, seconds_of=seconds_of
    )


def test_the_fastest_plan_serves_by_class_of_rows(tmp_path: Path) -> None:
    """The separate ops come first, then each plan; the gain must be more than noise."""
    make_tiny_model(tmp_path, "llama")
    calls = iter(range(1000))

    def seconds_of(_replay: Replay) -> float:
        number = next(calls)
        of_class, plan = number // (6 * 6), number % 6
        # Of up to 16 rows the third plan is fastest, of up to 64 all are alike, then the first.
        return {0: 1.0 - 0.1 * (plan == 3), 1: 1.0 - 0.001 * plan, 2: 1.0 - 0.5 * (plan == 1)}[
            of_class
        ]

    chosen = a_trial(tmp_path, seconds_of)

    assert chosen is not None
    assert chosen.plans == {16: PLANS[2], 64: frozenset(), 128: PLANS[0]}


def test_nothing_is_fused_where_nothing_is_faster(tmp_path: Path) -> None:
    """Classes above the largest batch are not tried."""
    make_tiny_model(tmp_path, "llama")

    assert a_trial(tmp_path, lambda _replay: 1.0, max_batch_size=8) is None


def test_a_plan_that_is_wrong_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However fast: half of the residual is missing."""
    make_tiny_model(tmp_path, "llama")
    right = add_row_product

    def wrong(x: Any, weight: Any, residual: Any, **kwargs: Any) -> Any:
        return right(x, weight, residual / 2, **kwargs)

    monkeypatch.setattr(row_stages, "add_row_product", wrong)
    times = iter([3.0, 2.0] * 100)
    chosen = a_trial(tmp_path, lambda _replay: next(times), max_batch_size=8)

    assert chosen is not None
    assert chosen.plans == {16: frozenset({"gate"})}
    assert "differs by" in caplog.text


@pytest.mark.parametrize("setting", ["on", "auto"])
def test_decodes_run_on_a_fake_gpu(setting: str, tmp_path: Path) -> None:
    """In graphs that are captured at start; a prompt takes the separate ops where it has none."""
    make_tiny_model(tmp_path, "llama", head_dim=16)
    graphs = "off" if setting == "auto" else "on"
    model = load_on_fake_gpu(tmp_path, row_products=setting, graphs=graphs)

    request = a_request(0)
    prompt = {one.name for one in model.launches(a_step(prompts=[request]))}

    assert "_row_product_kernel" not in prompt
    assert (model.loaded.runner._decoder.few_rows is None) == (setting == "auto")


def test_a_replayed_prompt_of_few_tokens_takes_them_too(tmp_path: Path) -> None:
    """A graph of a mixed step has so many rows, whatever they are."""
    make_tiny_model(tmp_path, "llama", head_dim=16)
    model = load_on_fake_gpu(tmp_path, row_products="on", graphs="on")
    runner = model.loaded.runner
    with model.fake.visible(), model.fake.loading():
        runner.capture_mixed(CudaGraphCapture(runner.device), [32], lambda _done: None)

    launches = model.launches(a_step(prompts=[a_request(0)]))

    products = [one for one in launches if one.name == "_row_product_kernel"]
    assert products
    assert all(one.in_graph for one in products)
