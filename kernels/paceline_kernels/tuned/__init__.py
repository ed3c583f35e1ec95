"""Block sizes by GPU and class of calls: one table, looked up, never searched for while serving."""

from paceline_kernels.tuned.lookup import SHIPPED, blocks_of, gpu_of
from paceline_kernels.tuned.spaces import SPACES, Blocks, Shape, Space
from paceline_kernels.tuned.table import ANY, NO_GPU, Gpu, NoBlocksError, Row, Table

__all__ = [
    "ANY",
    "NO_GPU",
    "SHIPPED",
    "SPACES",
    "Blocks",
    "Gpu",
    "NoBlocksError",
    "Row",
    "Shape",
    "Space",
    "Table",
    "blocks_of",
    "gpu_of",
]
