"""Attention's kernels, launched for every shape of a step: each variant is compiled at its first.

How a decode's context is cut into parts follows from how many sequences there are and from the
longest one; how prompts find their programs, from how many there are. Both go by powers of two, so
powers of two reach every variant.
"""

import torch

from paceline_engine.attention.kernel_attention import KernelAttention
from paceline_engine.core.graph_sizes import powers_of_two
from paceline_kernels import paged_decode_attention, paged_prefill_attention
from paceline_wire.limits import Capacity


@torch.inference_mode()
def launch_every_shape(
    attention: KernelAttention, capacity: Capacity, *, dtype: torch.dtype
) -> None:
    """Launch attention over nothing: all rows are padding, which attend to nothing.

    `dtype`: of queries.
    """
    config, kv = attention.config, attention.kv
    device = kv.keys[0].device
    most_rows = capacity.max_batch_size
    most_blocks = -(-capacity.max_model_len // capacity.block_size)
    blocks = torch.zeros(most_rows * most_blocks, dtype=torch.int32, device=device)
    nothing = torch.zeros(most_rows + 1, dtype=torch.int32, device=device)
    heads = config.num_q_heads, config.head_size
    queries = torch.zeros(most_rows, *heads, dtype=dtype, device=device)
    layers = {window: layer for layer, window in enumerate(config.windows)}
    for window, layer in layers.items():
        keys, values, exponents = kv.keys[layer], kv.values[layer], kv.exponents(layer)
        scale, softcap = config.score_scale, config.attention_softcap
        for rows in powers_of_two(most_rows):
            lens = nothing[:rows]
            for width in powers_of_two(most_blocks):
                table = blocks[: rows * width].view(rows, width)
                paged_decode_attention(
                    queries[:rows], keys, values, table, lens, scale, window, softcap, exponents
                )
            table, bounds = blocks[:rows].view(rows, 1), nothing[: rows + 1]
            paged_prefill_attention(
                queries[:1], keys, values, table, bounds, lens, scale, window, softcap, exponents
            )
