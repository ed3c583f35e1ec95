"""What steps launched and moved when their launches were first counted, beside what they do now.

Nobody can print the figures before any more: they are kept here, and their page is decision 75.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from step_work.steps import DECODE, IN_GRAPH, MIXED, PREFILL, Step
from step_work.work import StepWork

LAUNCHES_OF_A_LAYER: Mapping[Step, int] = MappingProxyType(
    {DECODE: 11, MIXED: 13, IN_GRAPH: 13, PREFILL: 11}
)
"""By step; nothing was replayed then, so the step in a graph has the launches of one op by op."""
SURPLUS: Mapping[str, float] = MappingProxyType(
    {"qwen2.5-0.5b": 0.151, "llama-3.2-1b": 0.077, "llama-3.1-8b": 0.054}
)
"""Bytes of 64 decodes beyond weights, keys and values, and logits, as a share of those."""


def table_of(works: Iterable[StepWork]) -> str:
    """Set both beside one another, for the steps of one model."""
    lines = ["  before and after (before: decision 75)"]
    for work in works:
        launches = LAUNCHES_OF_A_LAYER[work.step], sum(work.of_a_layer.values())
        line = f"    {work.step.name}: launches a layer {launches[0]} -> {launches[1]}"
        if work.step == DECODE and work.model in SURPLUS:
            line += f", surplus {SURPLUS[work.model]:.1%} -> {work.surplus:.1%}"
        lines.append(line)
    return "\n".join(lines)
