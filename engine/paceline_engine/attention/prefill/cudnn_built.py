"""The graphs of a model: built once, while the engine starts, in bounded time and memory."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline_engine.attention.prefill.attention import RefusedError
from paceline_engine.attention.prefill.cudnn_graphs import LADDER, Geometry, Rung, build

WORKSPACE_BYTES = 64 << 20
"""What a graph may ask for; one that asks for more is left out."""
BUILD_S = 60.0
"""After which no further graph is begun."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """What serves from now on."""

    geometry: Geometry
    graphs: Mapping[Rung, Any]  # in the ladder's order
    handle: Any
    workspace: Tensor
    """Of all graphs: layers run one after the other."""

    def serves(self, keys: Tensor, scale: float) -> bool:
        """Whether the graphs are those of such a layer."""
        return geometry_of(self.geometry.num_q_heads, keys, scale) == self.geometry


def geometry_of(num_q_heads: int, keys: Tensor, scale: float) -> Geometry:
    """What a layer with such keys [blocks, block_size, num_kv_heads, head_size] needs."""
    _, block_size, num_kv_heads, head_size = keys.shape
    return Geometry(num_q_heads, num_kv_heads, head_size, block_size, keys.dtype, scale)


def build_all(
    library: Any, geometry: Geometry, device: torch.device, clock: Callable[[], float]
) -> Built:
    """Build what the ladder has; a rung that no engine takes is left out.

    Raises RefusedError, with cuDNN's last reason, where none is left.
    """
    handle = library.create_handle()
    begun_s = clock()
    refusal = "not one was built in time"
    graphs: dict[Rung, Any] = {}
    most_bytes = 1
    for rung in LADDER:
        if clock() - begun_s > BUILD_S:
            break
        try:
            graph = build(library, geometry, rung, {"handle": handle})
        except library.cudnnGraphNotSupportedError as error:
            refusal = str(error).partition("\n")[0]
            continue
        num_bytes = graph.get_workspace_size()
        if num_bytes > WORKSPACE_BYTES:
            refusal = f"a graph wants {num_bytes} bytes, where {WORKSPACE_BYTES} are set aside"
            continue
        graphs[rung], most_bytes = graph, max(most_bytes, num_bytes)
    if not graphs:
        raise RefusedError(f"cuDNN built no graph for such heads here: {refusal}")
    took_s = clock() - begun_s
    _log.info("prompts by cudnn: %d of %d graphs in %.1f s", len(graphs), len(LADDER), took_s)
    workspace = torch.empty(most_bytes, dtype=torch.uint8, device=device)
    return Built(geometry, graphs, handle, workspace)
