"""Launches prefill attention in every shape at start, so that each variant is compiled by then.

The kernel's variant depends on the number of prompts, by powers of two, so powers of two
reach every variant. Decodes have one variant, which any step of them reaches.
"""

import torch

from paceline_engine.attention.kernel_attention import KernelAttention
from paceline_engine.core.graph_sizes import powers_of_two
from paceline_kernels import paged_prefill_attention
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
    blocks = torch.zeros(most_rows, dtype=torch.int32, device=device)
    nothing = torch.zeros(most_rows + 1, dtype=torch.int32, device=device)
    heads = config.num_q_heads, config.head_size
    queries = torch.zeros(1, *heads, dtype=dtype, device=device)
    layers = {window: layer for layer, window in enumerate(config.windows)}
    for window, layer in layers.items():
        keys, values, exponents = kv.keys[layer], kv.values[layer], kv.exponents(layer)
        scale, softcap = config.score_scale, config.attention_softcap
        for rows in powers_of_two(most_rows):
            lens, bounds = nothing[:rows], nothing[: rows + 1]
            table = blocks[:rows].view(rows, 1)
            paged_prefill_attention(
                queries, keys, values, table, bounds, lens, scale, window, softcap, exponents
            )
