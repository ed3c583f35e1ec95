"""A step's launches with what each moves, beside what no step can do without."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from paceline_engine.core.model_config import ModelConfig
from paceline_testing.device_record import Kind, Launch
from step_work.gpus import GPUS
from step_work.kernels import moved
from step_work.level_two import read_from_l2
from step_work.steps import FakeModel, Step

_BYTES = 2
"""Of a number in bfloat16."""


@dataclass(frozen=True, slots=True)
class Work:
    """One launch of a step."""

    label: str
    kind: Kind
    read: int
    written: int
    flops: int
    in_graph: bool
    launch: Launch

    @property
    def num_bytes(self) -> int:
        """Bytes that it reads and writes."""
        return self.read + self.written


@dataclass(frozen=True, slots=True)
class StepWork:
    """Everything that a step gives the device to do."""

    model: str
    config: ModelConfig
    step: Step
    launches: tuple[Work, ...]
    weight_size: int = _BYTES
    """Bytes of a weight of a layer."""

    @property
    def num_bytes(self) -> int:
        """Bytes that all launches read and write together."""
        return sum(work.num_bytes for work in self.launches)

    @property
    def flops(self) -> int:
        """FLOPs that all launches compute together."""
        return sum(work.flops for work in self.launches)

    @property
    def least_bytes(self) -> int:
        """Bytes without which no step can be: see `least_bytes`."""
        return least_bytes(self.config, self.step, self.weight_size)

    @property
    def surplus(self) -> float:
        """What is moved beyond that, as a share of it."""
        return self.num_bytes / self.least_bytes - 1

    def surplus_beside(self, l2_bytes: int) -> float:
        """Return the same where what such a cache holds is not read from memory again."""
        moved = [(work.launch, work.read, work.written) for work in self.launches]
        return (self.num_bytes - read_from_l2(moved, l2_bytes)) / self.least_bytes - 1

    @property
    def of_a_layer(self) -> Counter[str]:
        """How often each launch is in a layer; the layers are alike, and in the graph if any is."""
        replayed = [work for work in self.launches if work.in_graph]
        counts = Counter(work.label for work in replayed or self.launches)
        layers = self.config.num_layers
        return Counter({label: n // layers for label, n in counts.items() if n >= layers})


def work_of(model: FakeModel, step: Step) -> StepWork:
    """Run a step and work out what each of its launches moves."""
    return StepWork(
        model.name,
        model.config,
        step,
        tuple(_work(launch, step) for launch in model.launches(step)),
        model.weight_size,
    )


def _work(launch: Launch, step: Step) -> Work:
    read, written, flops = moved(launch, step)
    return Work(_label(launch), launch.kind, read, written, flops, launch.in_graph, launch)


def _label(launch: Launch) -> str:
    if launch.kind == "product":
        return f"product {launch.arguments['inputs']} to {launch.arguments['outputs']}"
    return launch.name.removeprefix("_").removesuffix("_kernel").removesuffix(".default")


def least_bytes(config: ModelConfig, step: Step, weight_size: int = _BYTES) -> int:
    """Add up what a step must move: weights once, keys and values once, logits once each way.

    Keys and values are read for every token that is attended to, and written for each of the
    step's. Activations are not among it: those of a few rows need not reach memory.
    """
    return (
        weight_bytes(config, weight_size)
        + kv_bytes(config, step)
        + _BYTES * config.hidden_size * step.num_tokens
        + 2 * _BYTES * config.vocab_size * step.num_rows
    )


def weight_bytes(config: ModelConfig, weight_size: int = _BYTES) -> int:
    """Weights that every step reads: the embedding's table is one only where it is the head."""
    head = config.vocab_size * config.hidden_size
    layers = config.num_parameters - (head if config.tied_head else 2 * head)
    return weight_size * layers + _BYTES * head


def kv_bytes(config: ModelConfig, step: Step) -> int:
    """Keys and values that the step reads and writes, in all layers."""
    attended = sum(step.contexts) + sum(context for _, context in step.chunks)
    size = 2 * _BYTES * config.num_kv_heads * config.head_size
    return config.num_layers * size * (attended + step.num_tokens)


def table_of(work: StepWork) -> str:
    """One line for each kind of launch, then the sums."""
    groups: dict[str, list[Work]] = {}
    for one in work.launches:
        groups.setdefault(one.label, []).append(one)
    lines = [f"{work.model}, {work.step.name}"]
    lines += [f"  {'launch':38} {'a layer':>7} {'a step':>6} {'MB':>10} {'GFLOP':>9}"]
    lines += [_line(work, label, group) for label, group in groups.items()]
    sums = (sum(work.of_a_layer.values()), len(work.launches))
    mb, least_mb, gflop = work.num_bytes / 1e6, work.least_bytes / 1e6, work.flops / 1e9
    lines.append(f"  {'all':38} {sums[0]:7} {sums[1]:6} {mb:10.2f} {gflop:9.1f}")
    lines.append(f"  {'weights, KV and logits once':38} {'':7} {'':6} {least_mb:10.2f}")
    lines.append(f"  surplus {work.surplus:.1%}; where L2 is read: {_beside(work)}")
    return "\n".join(lines)


def _beside(work: StepWork) -> str:
    sizes: dict[int, list[str]] = {}
    for gpu in GPUS.values():
        sizes.setdefault(gpu.l2_bytes, []).append(gpu.name)
    return ", ".join(
        f"{' and '.join(names)} {work.surplus_beside(size):.1%}" for size, names in sizes.items()
    )


def _line(work: StepWork, label: str, group: Sequence[Work]) -> str:
    a_layer = work.of_a_layer.get(label)
    num_bytes = sum(one.num_bytes for one in group) / 1e6
    flops = sum(one.flops for one in group) / 1e9
    return (
        f"  {label:38} {a_layer or '-':>7} {len(group):6} {num_bytes:10.2f} "
        f"{f'{flops:9.1f}' if flops else '-':>9}"
    )
