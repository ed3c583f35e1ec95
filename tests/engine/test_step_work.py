"""What a whole step launches and moves, counted on a GPU that is not there."""

from functools import cache
from typing import Any

import pytest
from torch import Tensor

from paceline_engine.attention import kernel_attention
from paceline_kernels import paged_decode_attention
from step_work.kernels import RULES
from step_work.steps import DECODE, IN_PIECES, MIXED, PREFILL, FakeModel, Step, fake_model
from step_work.work import StepWork, table_of, work_of

LAUNCHES_OF_A_LAYER = {DECODE: 9, MIXED: 10, IN_PIECES: 12, PREFILL: 9}
"""The most that a layer may take, four of them products with weights."""
MOST_SURPLUS = {"qwen2.5-0.5b": 0.101, "llama-3.2-1b": 0.045, "llama-3.1-8b": 0.033}
"""Of bytes of a step of 64 decodes, activations counted as if none stayed in a cache."""
MOST_SURPLUS_FUSED = {"qwen2.5-0.5b": 0.123, "llama-3.2-1b": 0.081, "llama-3.1-8b": 0.045}
"""The same with norms, gates and sums within products, most of it sums of parts."""
STEPS = tuple(LAUNCHES_OF_A_LAYER)


@cache
def model_of(name: str) -> FakeModel:
    """Load each model once."""
    return fake_model(name)


def of_a_layer(work: StepWork) -> int:
    return sum(work.of_a_layer.values())


@pytest.mark.parametrize("name", MOST_SURPLUS)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_layer_launches_no_more(name: str, step: Step) -> None:
    """Each launch less is some microseconds less, in every layer."""
    assert of_a_layer(work_of(model_of(name), step)) <= LAUNCHES_OF_A_LAYER[step]


@pytest.mark.parametrize(("name", "most"), MOST_SURPLUS.items())
def test_decodes_move_little_more_than_they_must(name: str, most: float) -> None:
    """Weights, keys and values, and logits are what no step can do without."""
    work = work_of(model_of(name), DECODE)

    assert 0 < work.surplus <= most


@pytest.mark.parametrize(("name", "most"), MOST_SURPLUS_FUSED.items())
def test_a_layer_of_fused_products_launches_six(name: str, most: float) -> None:
    """Of all layers but the first and last, whose norms are joined to embedding and head."""
    model = fake_model(name, row_products="on")
    work = work_of(model, DECODE)
    layers, outside = model.config.num_layers, 13

    assert len(work.launches) == 6 * layers + outside
    assert sum(one.label == "row_product" for one in work.launches) == 4 * layers - 2
    assert 0 < work.surplus <= most
    assert work_of(model, PREFILL).of_a_layer == work_of(model_of(name), PREFILL).of_a_layer


def test_a_launch_more_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every layer, with the bytes that it moves."""
    model = model_of("qwen2.5-0.5b")
    before = work_of(model, DECODE)

    def copied(*args: Any, **kwargs: Any) -> Tensor:
        return paged_decode_attention(*args, **kwargs).clone()

    monkeypatch.setattr(kernel_attention, "paged_decode_attention", copied)
    after = work_of(model, DECODE)

    assert of_a_layer(after) == of_a_layer(before) + 1
    q_bytes = 64 * model.config.num_q_heads * model.config.head_size * 2
    assert after.num_bytes == before.num_bytes + 2 * q_bytes * model.config.num_layers


def test_a_kernel_without_a_rule_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes would be missing from the sum."""
    without = {name: rule for name, rule in RULES.items() if name != "_gate_mul_kernel"}
    monkeypatch.setattr("step_work.kernels.RULES", without)

    with pytest.raises(KeyError, match="_gate_mul_kernel"):
        work_of(model_of("qwen2.5-0.5b"), DECODE)


def test_the_bytes_are_those_of_the_readmes() -> None:
    """Llama-3.1-8B, 64 rows of 1,024 tokens: 268 MB of keys and values a layer."""
    work = work_of(model_of("llama-3.1-8b"), DECODE)
    attention = next(one for one in work.launches if one.label == "decode")
    kv, queries_and_results = 268_435_456, 2 * 64 * 32 * 128 * 2
    most_parts = 2 * 64 * 2 * 32 * 129 * 4  # each row has one joint or none; written and read

    least = kv + queries_and_results
    assert least < attention.num_bytes < (least + most_parts) * 1.001
    assert attention.flops == 4 * 64 * 1024 * 32 * 128


def test_a_prompt_is_bound_by_its_products() -> None:
    """Twice the weights for each token, and four numbers of each head for each pair."""
    work = work_of(model_of("llama-3.1-8b"), PREFILL)
    layers, head = 6_979_321_856, 525_336_576
    pairs = 2048 * 2049 // 2
    attention = 4 * pairs * 32 * 128 * 32

    exact = 2 * 2048 * layers + 2 * head + attention
    assert work.flops == pytest.approx(exact, rel=0.03)  # the last layer computes one row


def test_a_table_has_every_launch() -> None:
    """By kind, with how often a layer has it."""
    work = work_of(model_of("qwen2.5-0.5b"), DECODE)
    table = table_of(work)

    assert all(one.label in table for one in work.launches)
    assert f"surplus {work.surplus:.1%}" in table


def test_in_pieces_attention_is_launched_by_the_host() -> None:
    """Everything else of all layers but the last is replayed, a graph a layer."""
    work = work_of(model_of("qwen2.5-0.5b"), IN_PIECES)

    launched = [one.label for one in work.launches if not one.in_graph]
    assert launched.count("prefill") == launched.count("decode") == 24
    assert launched.count("gate_mul") == 1
    assert sum(one.label == "gate_mul" for one in work.launches) == 24


def test_only_a_step_of_decodes_is_in_a_graph() -> None:
    """Copies to and from the host are never in it."""
    model = model_of("qwen2.5-0.5b")

    assert not any(one.in_graph for one in work_of(model, MIXED).launches)
    outside = [one.label for one in work_of(model, DECODE).launches if not one.in_graph]
    assert outside == ["cpu to cuda", "aten.clone", "cuda to cpu"]
