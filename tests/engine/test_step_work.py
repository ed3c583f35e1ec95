"""What a whole step launches and moves, counted on a GPU that is not there."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline_engine.attention import kernel_attention
from paceline_engine.core.graph_sizes import mixed_sizes, padded_size
from paceline_engine.model.row_stages import possible_plans
from paceline_kernels import paged_decode_attention
from paceline_kernels.dependent import dependent
from paceline_testing.device_record import Launch
from step_work import before, fused, page
from step_work.gpus import GPUS
from step_work.kernels import RULES
from step_work.level_two import read_from_l2
from step_work.predictions import SINGLE
from step_work.ranks import rank_work, without_norms_behind_sums
from step_work.steps import DECODE, IN_GRAPH, MIXED, PREFILL, FakeModel, Step, fake_model
from step_work.times import is_dependent, predict
from step_work.work import StepWork, table_of, work_of

LAUNCHES_OF_A_LAYER = {DECODE: 9, MIXED: 10, IN_GRAPH: 10, PREFILL: 9}
"""The most that a layer may take, four of them products with weights."""
MOST_SURPLUS = {"qwen2.5-0.5b": 0.101, "llama-3.2-1b": 0.045, "llama-3.1-8b": 0.033}
"""Of bytes of a step of 64 decodes, activations counted as if none stayed in a cache."""
MOST_SURPLUS_FUSED = {"qwen2.5-0.5b": 0.123, "llama-3.2-1b": 0.081, "llama-3.1-8b": 0.045}
"""The same with norms, gates and sums within products, most of it sums of parts."""
MOST_SURPLUS_GATED = {"qwen2.5-0.5b": 0.069, "llama-3.2-1b": 0.031, "llama-3.1-8b": 0.023}
"""The same with the gate alone within its product."""
MOST_SURPLUS_BESIDE_L2 = {"qwen2.5-0.5b": 0.065, "llama-3.2-1b": 0.027, "llama-3.1-8b": 0.020}
"""The same where an H200's L2 is read: what is left are writes, most of them of the MLP."""
STEPS = tuple(LAUNCHES_OF_A_LAYER)
FEW = 4
"""Layers, where one is looked at."""


@cache
def model_of(name: str) -> FakeModel:
    """Load each model once."""
    return fake_model(name)


@cache
def work(name: str, step: Step) -> StepWork:
    """Count each step as it is served once: that takes seconds."""
    return work_of(model_of(name), step)


@cache
def small_work(name: str, step: Step) -> StepWork:
    """Count a step of few layers, which are like all others."""
    return work_of(fake_model(name, num_layers=FEW), step)


@cache
def small_rank_work(name: str, *, by_peers: bool) -> StepWork:
    """The same of one of two ranks."""
    return rank_work(name, by_peers=by_peers, num_layers=FEW)


def of_a_layer(found: StepWork) -> int:
    return sum(found.of_a_layer.values())


@pytest.mark.parametrize("name", MOST_SURPLUS)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_layer_launches_no_more(name: str, step: Step) -> None:
    """Each launch less is some microseconds less, in every layer."""
    assert of_a_layer(small_work(name, step)) <= LAUNCHES_OF_A_LAYER[step]


@pytest.mark.parametrize(("name", "most"), MOST_SURPLUS.items())
def test_decodes_move_little_more_than_they_must(name: str, most: float) -> None:
    """Weights, keys and values, and logits are what no step can do without."""
    assert 0 < work(name, DECODE).surplus <= most


@pytest.mark.parametrize(("name", "most"), MOST_SURPLUS_FUSED.items())
def test_a_layer_of_fused_products_launches_six(name: str, most: float) -> None:
    """Of all layers but the first and last, whose norms are joined to embedding and head."""
    model = model_of(name)
    (everything, *_) = possible_plans(model.decoder)
    decode = fused.fused_work(model, DECODE, everything)
    layers, outside = model.config.num_layers, 13

    assert len(decode.launches) == 6 * layers + outside
    assert sum(one.label == "row_product" for one in decode.launches) == 4 * layers - 2
    assert 0 < decode.surplus <= most
    with model.fusing(everything):
        prompt = work_of(model, PREFILL)
    assert prompt.of_a_layer == work(name, PREFILL).of_a_layer


@pytest.mark.parametrize(("name", "most"), MOST_SURPLUS_GATED.items())
def test_a_gate_within_its_product_is_not_moved(name: str, most: float) -> None:
    """Gate and up are neither written nor read again: a launch less a layer."""
    model = model_of(name)
    gated = fused.fused_work(model, DECODE, frozenset({"gate"}))

    assert of_a_layer(gated) == LAUNCHES_OF_A_LAYER[DECODE] - 1
    assert 0 < gated.surplus <= most


def test_a_start_takes_what_the_model_says_is_faster() -> None:
    """Of one row norms within products gain; the model is the clock, the engine chooses."""
    model = model_of("qwen2.5-0.5b")
    plans = fused.by_plan(model, SINGLE)
    gpu = GPUS["H200"]

    assert next(iter(plans)) == frozenset()
    chosen = fused.taken(plans, gpu)
    timed = {plan: fused.timed_s(found, gpu) for plan, found in plans.items()}
    assert chosen == min(timed, key=lambda plan: timed[plan]) != frozenset()
    assert predict(plans[chosen], gpu).likely < predict(plans[frozenset()], gpu).likely
    assert work("qwen2.5-0.5b", SINGLE).of_a_layer == plans[frozenset()].of_a_layer


def test_no_layer_launches_or_moves_more_than_before() -> None:
    """What was counted first is printed beside what is counted now."""
    works = [work("qwen2.5-0.5b", step) for step in before.LAUNCHES_OF_A_LAYER]
    table = before.table_of(works)

    assert all(of_a_layer(each) < before.LAUNCHES_OF_A_LAYER[each.step] for each in works)
    assert "launches a layer 11 -> 9, surplus 15.1% -> 10.1%" in table


def test_the_page_has_what_is_predicted_now() -> None:
    """Row by row; `python -m step_work --page` prints them."""
    written = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()

    for row in page.rows({name: model_of(name) for name in MOST_SURPLUS}):
        assert row in written, f"{row} is not in docs/gpu.md"


@pytest.mark.parametrize(("name", "most"), MOST_SURPLUS_BESIDE_L2.items())
def test_decodes_read_little_from_memory_that_l2_may_hold(name: str, most: float) -> None:
    """What is written counts still, and a larger cache never holds less."""
    found = work(name, DECODE)
    beside = [found.surplus_beside(gpu.l2_bytes) for gpu in GPUS.values()]

    assert beside == sorted(beside, reverse=True)
    assert found.surplus_beside(0) == found.surplus
    assert 0 < found.surplus_beside(GPUS["H200"].l2_bytes) <= most


def a_copy(source: Tensor, into: Tensor) -> tuple[Launch, int, int]:
    return Launch("op", "copy", tensors=(source, into)), source.nbytes, into.nbytes


def test_what_was_touched_too_long_ago_is_read_from_memory() -> None:
    """All that was moved since counts, and the tensor; each place once, by whatever view."""
    small, other = torch.zeros(100), torch.zeros(100)
    large, result = torch.zeros(1000), torch.zeros(1000)
    soon = [a_copy(small, other), a_copy(other.view(10, 10), small)]
    late = [soon[0], a_copy(large, result), soon[1]]

    assert read_from_l2(soon, 2 * 400) == 400
    assert read_from_l2(soon, 2 * 400 - 1) == 0
    assert read_from_l2(late, 2 * (8000 + 400) - 1) == 0
    assert read_from_l2(late, 2 * (8000 + 400)) == 400
    assert read_from_l2(late[1:], 10**9) == 0  # nobody has touched it before


def test_a_launch_more_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every layer, with the bytes that it moves."""
    model = model_of("qwen2.5-0.5b")
    before = work("qwen2.5-0.5b", DECODE)

    def copied(*args: Any, **kwargs: Any) -> Tensor:
        return paged_decode_attention(*args, **kwargs).clone()

    monkeypatch.setattr(kernel_attention, "paged_decode_attention", copied)
    after = work_of(model, DECODE)

    assert of_a_layer(after) == of_a_layer(before) + 1
    q_bytes = 64 * model.config.num_q_heads * model.config.head_size * 2
    assert after.num_bytes == before.num_bytes + 2 * q_bytes * model.config.num_layers


def test_a_rank_of_two_moves_half_and_meets_twice_a_layer() -> None:
    """Beside a GPU's own launches; embedding, head and logits are whole on the first rank."""
    alone = small_work("llama-3.1-8b", DECODE)
    rank = small_rank_work("llama-3.1-8b", by_peers=False)
    sums = [one for one in rank.launches if one.kind == "sum of ranks"]
    tokens = [one for one in rank.launches if one.kind == "tokens to ranks"]

    assert of_a_layer(rank) == of_a_layer(alone) + 2
    assert len(rank.launches) == len(alone.launches) + 2 * FEW + 1
    assert {one.written for one in sums} == {64 * 4096 * 2}
    assert [one.written for one in tokens] == [64 * 8]
    assert all(one.in_graph for one in (*sums, *tokens))
    head = 128256 * 4096 * 2
    assert rank.num_bytes - head < 0.55 * (alone.num_bytes - head)


def test_a_kernel_without_a_rule_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes would be missing from the sum."""
    without = {name: rule for name, rule in RULES.items() if name != "_gate_mul_kernel"}
    monkeypatch.setattr("step_work.kernels.RULES", without)

    with pytest.raises(KeyError, match="_gate_mul_kernel"):
        work_of(model_of("qwen2.5-0.5b"), DECODE)


def test_the_bytes_are_those_of_the_readmes() -> None:
    """Llama-3.1-8B, 64 rows of 1,024 tokens: 268 MB of keys and values a layer."""
    decode = work("llama-3.1-8b", DECODE)
    attention = next(one for one in decode.launches if one.label == "decode")
    kv, queries_and_results = 268_435_456, 2 * 64 * 32 * 128 * 2
    most_parts = 2 * 64 * 2 * 32 * 129 * 4  # each row has one joint or none; written and read

    least = kv + queries_and_results
    assert least < attention.num_bytes < (least + most_parts) * 1.001
    assert attention.flops == 4 * 64 * 1024 * 32 * 128


def test_a_prompt_is_bound_by_its_products() -> None:
    """Twice the weights for each token, and four numbers of each head for each pair."""
    prompt = work("llama-3.1-8b", PREFILL)
    layers, head = 6_979_321_856, 525_336_576
    pairs = 2048 * 2049 // 2
    attention = 4 * pairs * 32 * 128 * 32

    exact = 2 * 2048 * layers + 2 * head + attention
    assert prompt.flops == pytest.approx(exact, rel=0.03)  # the last layer computes one row


def test_a_table_has_every_launch() -> None:
    """By kind, with how often a layer has it."""
    decode = work("qwen2.5-0.5b", DECODE)
    table = table_of(decode)

    assert all(one.label in table for one in decode.launches)
    assert f"surplus {decode.surplus:.1%}" in table


def test_a_mixed_step_is_in_one_graph() -> None:
    """Every layer of it, attention of prompts and decodes too; the states are copied once."""
    replayed = work("qwen2.5-0.5b", IN_GRAPH)

    inside = [one for one in replayed.launches if one.in_graph]
    labels = [one.label for one in inside]
    for each in ("prefill", "decode", "gate_mul"):
        assert labels.count(each) == 24, each
    (copy,) = [one for one in inside if one.kind == "copy"]
    tokens = padded_size(mixed_sizes(8192), IN_GRAPH.num_tokens)
    assert copy.num_bytes == 2 * 2 * replayed.config.hidden_size * tokens
    outside = {one.label for one in replayed.launches if not one.in_graph}
    assert not outside & {label for label in labels if labels.count(label) >= 24}


def test_every_kernel_of_a_step_may_be_a_dependent_launch() -> None:
    """Products, copies and ops of torch take no part; without the switch nothing does."""
    model = model_of("qwen2.5-0.5b")
    with dependent.turned(on=True):
        early = work_of(model, DECODE)
    usual = work("qwen2.5-0.5b", DECODE)

    for one in early.launches:
        assert is_dependent(one) == (one.kind == "kernel"), one.label
    assert not any(map(is_dependent, usual.launches))
    assert [one.label for one in early.launches] == [one.label for one in usual.launches]
    assert predict(early, GPUS["H200"]).likely < predict(usual, GPUS["H200"]).likely
    assert predict(early, GPUS["A100"]) == predict(usual, GPUS["A100"])


def test_only_a_step_of_decodes_is_in_a_graph() -> None:
    """Copies to and from the host are never in it."""
    mixed, decode = (work("qwen2.5-0.5b", step) for step in (MIXED, DECODE))

    assert not any(one.in_graph for one in mixed.launches)
    outside = [one.label for one in decode.launches if not one.in_graph]
    assert outside == ["cpu to cuda", "aten.clone", "cuda to cpu"]


def test_ranks_that_read_each_other_launch_two_sums_more_a_layer() -> None:
    """The products before them write where they are read, so nothing is copied."""
    by_peers, by_nccl = (small_rank_work("llama-3.2-1b", by_peers=each) for each in (True, False))
    alone = small_work("llama-3.2-1b", DECODE)

    assert by_peers.of_a_layer["symm_mem.one_shot_all_reduce_out"] == 2
    assert by_nccl.of_a_layer["c10d.allreduce_"] == 2
    assert of_a_layer(by_peers) == of_a_layer(by_nccl) == of_a_layer(alone) + 2


def test_each_norm_behind_a_sum_could_be_one_with_it() -> None:
    """Two a layer; the first norm of a step is the embedding's."""
    rank = small_rank_work("llama-3.2-1b", by_peers=True)

    joined = without_norms_behind_sums(rank)

    assert len(rank.launches) - len(joined.launches) == 2 * rank.config.num_layers
