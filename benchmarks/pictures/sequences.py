"""How many sequences fit into one KV cache, paged and preallocated, as `paceline plan` computes."""

from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from paceline_cli.plan.kv_memory import KvMemory
from paceline_cli.plan.sequences import preallocated_batch
from paceline_cli.plot_style import AFTER, BEFORE, plain_log_ticks, styled
from paceline_engine.hardware.devices import BLOCK_TOKENS, GPUS
from paceline_engine.hardware.model_size import Precision, size_of
from paceline_sim.hardware import LLAMA_8B

MEMORY: Final = KvMemory(
    device=GPUS["h100"],
    size=size_of(LLAMA_8B, Precision(2)),
    fraction=0.9,
    max_token_budget=8192,
)
"""Llama-3.1-8B in 16 bits on an H100 of 80 GB, with the defaults of a manifest."""
SHOWN: Final = 1000
"""The length at which the picture prints how many fit."""
_LENGTHS: Final = (128, 256, 512, 1024, 2048, 4096, 8192)
_RESERVED: Final = ((2048, "-."), (8192, "--"))


def paged_batch(kv_tokens: int, length: int) -> int:
    """Count the sequences that fit where each holds blocks for the tokens that it has."""
    return preallocated_batch(kv_tokens, length, BLOCK_TOKENS)


def draw_sequences(memory: KvMemory, path: Path) -> None:
    """Draw both over the length that sequences really have."""
    with styled():
        figure = Figure(figsize=(7.6, 4.2), layout="constrained")
        axis = figure.subplots()
        lengths = range(_LENGTHS[0], _LENGTHS[-1] + 1, BLOCK_TOKENS)
        fit = [paged_batch(memory.tokens, length) for length in lengths]
        axis.plot(lengths, fit, color=AFTER, lw=2.5)
        _name(
            axis, (lengths[0], fit[0]), f"paged, blocks of {BLOCK_TOKENS} tokens", AFTER, (26, -6)
        )
        counts = {longest: preallocated_batch(memory.tokens, longest, BLOCK_TOKENS)
                  for longest, _ in _RESERVED}  # fmt: skip
        for longest, dash in _RESERVED:
            reserved = counts[longest]
            axis.plot((_LENGTHS[0], longest), (reserved, reserved), color=BEFORE, ls=dash, lw=2)
            words = f"{reserved:,}: room reserved for {longest:,} tokens each"
            _name(axis, (_LENGTHS[0], reserved), words, BEFORE)
        paged = paged_batch(memory.tokens, SHOWN)
        axis.plot([SHOWN], [paged], "o", color=AFTER, ms=7)
        _name(axis, (SHOWN, paged), f"{paged:,} sequences of {SHOWN:,} tokens", AFTER)
        axis.set_yscale("log")
        axis.set_ylim(30, 1.4 * fit[0])
        plain_log_ticks(axis.yaxis, [30.0, float(fit[0])])
        axis.set_xscale("log", base=2)
        axis.set_xlim(_LENGTHS[0], 1.05 * _LENGTHS[-1])
        axis.xaxis.set_major_locator(FixedLocator(_LENGTHS))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.set_xlabel("length of each sequence, prompt and answer (tokens)")
        axis.set_ylabel(f"sequences in {memory.tokens:,} tokens of KV")
        axis.set_title(
            f"Paging fits {paged:,} sequences where {min(counts.values()):,} fitted"
            " (computed: H100, Llama-3.1-8B)"
        )
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _name(
    axis: Any, at: tuple[float, float], text: str, color: str, offset: tuple[int, int] = (5, 5)
) -> None:
    axis.annotate(text, at, xytext=offset, textcoords="offset points", fontsize=10,
                  color=color)  # fmt: skip
