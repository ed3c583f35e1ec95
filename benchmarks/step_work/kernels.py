"""Bytes and FLOPs of one launch of each of our kernels, as its folder's README gives them.

A number that many programs read is counted once: the cache has it. Rows are greedy, as the suite's
steps are. A kernel without a rule here raises KeyError: write one.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from paceline_testing.device_record import Launch, bytes_of
from step_work.steps import BLOCK_SIZE, Step


class Moved(NamedTuple):
    """Bytes and FLOPs of one launch."""

    read: int
    written: int
    flops: int = 0


Arguments = Mapping[str, Any]
Rule = Callable[[Arguments, Step], Moved]


def moved(launch: Launch, step: Step) -> Moved:
    """Return what a launch of a step moves and computes."""
    if launch.kind != "kernel":
        return Moved(launch.read, launch.written, launch.flops)
    return RULES[launch.name](launch.arguments, step)


def _whole(*read: str, into: tuple[str, ...]) -> Rule:
    """Make the rule of a kernel that reads some tensors and writes others, each whole."""

    def rule(given: Arguments, _step: Step) -> Moved:
        return Moved(_bytes(given, *read), _bytes(given, *into))

    return rule


def _bytes(given: Arguments, *names: str) -> int:
    return sum(bytes_of(given[name]) for name in names if given[name] is not None)


def _embed(given: Arguments, _step: Step) -> Moved:
    rows = _bytes(given, "residual_ptr")
    return Moved(rows + _bytes(given, "ids_ptr", "weight_ptr"), rows + _bytes(given, "normed_ptr"))


def _rope(given: Arguments, _step: Step) -> Moved:
    tokens, size = len(given["positions_ptr"]), given["HEAD_SIZE"]
    angles = tokens * size * given["cos_sin_ptr"].element_size()
    stored = 2 * tokens * given["NUM_KV_HEADS"] * size * given["k_cache_ptr"].element_size()
    if given["k_exponents_ptr"] is not None:
        stored += 2 * tokens * given["NUM_KV_HEADS"]
    read = _bytes(given, "qkv_ptr", "positions_ptr", "slots_ptr", "q_norm_ptr", "k_norm_ptr")
    return Moved(read + angles, _bytes(given, "q_ptr") + stored)


def _kv_bytes(given: Arguments, tokens: int) -> int:
    """Keys and values of so many tokens."""
    size: int = given["HEAD_SIZE"] * given["k_cache_ptr"].element_size()
    exponents = given["k_exponents_ptr"] is not None
    heads: int = given["NUM_KV_HEADS"]
    return 2 * tokens * heads * (size + exponents)


def _visible(given: Arguments, context: int) -> int:
    return min(context, given["WINDOW"] or context)


def _units(given: Arguments, step: Step) -> list[int]:
    return [math.ceil(_visible(given, context) / given["UNIT"]) for context in step.contexts]


def _num_parts(given: Arguments, step: Step) -> int:
    """Parts that are left to be joined: of rows that one run does not hold whole."""
    ends = list(itertools.accumulate(_units(given, step)))
    num_runs = given["num_programs"]
    bounds = {run * ends[-1] // num_runs for run in range(num_runs + 1)}
    parts = 0
    for begin, end in itertools.pairwise([0, *ends]):
        within = sum(begin < bound < end for bound in bounds)
        parts += within + 1 if within else 0
    return parts


def _decode(given: Arguments, step: Step) -> Moved:
    """Attention of decodes; parts are written and read again."""
    seen = sum(_visible(given, context) for context in step.contexts)
    heads = given["NUM_KV_HEADS"] * given["GROUP"]
    table = 4 * sum(-(-context // BLOCK_SIZE) for context in step.contexts)
    parts = _num_parts(given, step) * heads * (given["HEAD_SIZE"] + 1) * 4
    plan = _bytes(given, "lens_ptr", "ends_ptr", "runs_ptr")
    return Moved(
        _bytes(given, "q_ptr") + plan + table + _kv_bytes(given, seen) + parts,
        _bytes(given, "out_ptr") + parts,
        4 * seen * heads * given["HEAD_SIZE"],
    )


def _prefill(given: Arguments, step: Step) -> Moved:
    """Attention over the chunks; a window hides what lies before it."""
    pairs = sum(
        _visible(given, place + 1)
        for tokens, context in step.chunks
        for place in range(context - tokens, context)
    )
    heads = given["NUM_KV_HEADS"] * given["GROUP"]
    contexts = sum(context for _, context in step.chunks)
    table = 4 * sum(-(-context // BLOCK_SIZE) for _, context in step.chunks)
    read = _bytes(given, "q_ptr") + table + _kv_bytes(given, contexts)
    return Moved(read, _bytes(given, "out_ptr"), 4 * pairs * heads * given["HEAD_SIZE"])


def _row_product(given: Arguments, _step: Step) -> Moved:
    """Rows and the weight once; sums of parts are written by all, and read by who joins them."""
    rows: int = given["rows"]
    halves = 2 if given["GATE"] else 1
    sums = 4 * rows * given["NUM_OUT"] * halves if given["IS_SPLIT"] else 0
    read = _bytes(
        given, "x_ptr", "weight_ptr", "bias_ptr", "norm_ptr", "squares_ptr", "residual_ptr"
    )
    return Moved(
        read + sums * (given["parts"] - 1),
        _bytes(given, "out_ptr", "new_squares_ptr") + sums * given["parts"],
        2 * rows * given["NUM_OUT"] * halves * given["NUM_IN"],
    )


def _draw(given: Arguments, _step: Step) -> Moved:
    """A greedy row reads the groups' largest logits, and one group again."""
    logits = given["logits_ptr"]
    group = len(logits) * given["GROUP"] * logits.element_size()
    return Moved(_bytes(given, "best_ptr") + group, _bytes(given, "tokens_ptr"))


def _cuts(given: Arguments, _step: Step) -> Moved:
    """A greedy row leaves at once."""
    return Moved(_bytes(given, "temperatures_ptr"), 0)


def _lay_out_step(given: Arguments, step: Step) -> Moved:
    contexts = (*step.contexts, *(context for _, context in step.chunks))
    blocks = 4 * sum(-(-context // BLOCK_SIZE) for context in contexts)
    numbers = _bytes(given, "rows_ptr", "starts_ptr", "bounds_ptr", "given_ids_ptr")
    made = ("token_ids_ptr", "positions_ptr", "slots_ptr", "block_table_ptr", "context_lens_ptr")
    return Moved(numbers + blocks, _bytes(given, *made))


def _lay_out_draws(given: Arguments, _step: Step) -> Moved:
    made = ("seeds_ptr", "positions_ptr", "temperatures_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr")
    numbers = 24 * given["count"]
    return Moved(numbers + _bytes(given, "rows_ptr", "places_ptr"), _bytes(given, *made))


def _write_rows(given: Arguments, _step: Step) -> Moved:
    read = _bytes(given, "rows_ptr", "columns_ptr", "bounds_ptr", "numbers_ptr")
    return Moved(read, 4 * math.prod(given["numbers_ptr"].shape))


def _keep_tokens(given: Arguments, _step: Step) -> Moved:
    return Moved(_bytes(given, "rows_ptr", "tokens_ptr"), _bytes(given, "tokens_ptr"))


def _adapter_down(given: Arguments, step: Step) -> Moved:
    """Rows with an adapter times its first factor; parts of the inputs leave sums of their own."""
    tokens, adapters = given["tokens"], _num_adapters(given["down_ptr"], step)
    read = _bytes(given, "x_ptr", "adapters_ptr") + adapters * bytes_of(given["down_ptr"][0])
    flops = 2 * tokens * given["NUM_IN"] * given["COLUMNS"]
    return Moved(read, _bytes(given, "low_ptr"), flops)


def _adapter_up(given: Arguments, step: Step) -> Moved:
    """Multiply the result of `_adapter_down` by the second factor, and add it to the product."""
    tokens, adapters = given["tokens"], _num_adapters(given["up_ptr"], step)
    read = _bytes(given, "y_ptr", "low_ptr", "adapters_ptr")
    read += adapters * bytes_of(given["up_ptr"][0])
    flops = 2 * tokens * given["NUM_OUT"] * given["RANK"]
    return Moved(read, _bytes(given, "y_ptr"), flops)


def _num_adapters(factors: Tensor, step: Step) -> int:
    return min(step.num_adapters, len(factors))


def _linear(*read: str) -> Rule:
    """Make the rule of a product of rows with quantised weights."""

    def rule(given: Arguments, _step: Step) -> Moved:
        flops = 2 * given["rows"] * given["NUM_OUT"] * given["NUM_IN"]
        return Moved(_bytes(given, *read), _bytes(given, "out_ptr"), flops)

    return rule


def _expert_product(given: Arguments, _step: Step) -> Moved:
    """Weights of every expert that slots may have, once; slots are as even as may be."""
    weight, slots = given["weight_ptr"], given["slots"]
    num_experts = min(len(weight), slots)
    read = _bytes(given, "x_ptr", "x_scales_ptr", "order_ptr", "experts_ptr")
    read += num_experts * bytes_of(weight[0])
    if given["scales_ptr"] is not None:
        read += num_experts * bytes_of(given["scales_ptr"][0])
    width = weight.shape[1]  # gates and what is gated, where NUM_OUT is half of it
    return Moved(read, _bytes(given, "out_ptr"), 2 * slots * width * given["NUM_IN"])


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "_embed_rms_norm_kernel": _embed,
        "_rms_norm_kernel": _whole(
            *("x_ptr", "residual_ptr", "weight_ptr"), into=("normed_ptr", "scales_ptr", "sum_ptr")
        ),
        "_rope_and_store_kv_kernel": _rope,
        "_plan_kernel": _whole("lens_ptr", into=("ends_ptr", "runs_ptr", "arrived_ptr")),
        "_decode_kernel": _decode,
        "_prefill_kernel": _prefill,
        "_row_product_kernel": _row_product,
        "_gate_mul_kernel": _whole("x_ptr", into=("out_ptr",)),
        "_gate_mul_fp8_kernel": _whole("x_ptr", into=("codes_ptr", "scales_ptr")),
        "_groups_kernel": _whole("logits_ptr", into=("best_ptr", "sums_ptr")),
        "_cuts_kernel": _cuts,
        "_draw_kernel": _draw,
        "_lay_out_step_kernel": _lay_out_step,
        "_lay_out_draws_kernel": _lay_out_draws,
        "_write_rows_kernel": _write_rows,
        "_keep_tokens_kernel": _keep_tokens,
        "_adapter_down_kernel": _adapter_down,
        "_adapter_up_kernel": _adapter_up,
        "_quantize_rows_kernel": _whole("x_ptr", into=("codes_ptr", "scales_ptr")),
        "_quantized_linear_kernel": _linear("x_ptr", "weight_ptr", "scales_ptr", "bias_ptr"),
        "_int4_linear_kernel": _linear("x_ptr", "weight_ptr", "groups_ptr", "bias_ptr"),
        "_join_parts_kernel": _whole("partial_ptr", "bias_ptr", into=("out_ptr",)),
        "_route_kernel": _whole("logits_ptr", into=("weights_ptr", "ids_ptr")),
        "_sort_slots_kernel": _whole("ids_ptr", into=("order_ptr", "experts_ptr")),
        "_expert_product_kernel": _expert_product,
        "_sum_slots_kernel": _whole("y_ptr", "weights_ptr", "ids_ptr", into=("out_ptr",)),
    }
)
