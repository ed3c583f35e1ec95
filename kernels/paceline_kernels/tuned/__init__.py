"""Block sizes by GPU and class of calls: one table, looked up, never searched for while serving."""

from paceline_kernels.tuned.lookup import blocks_of, gpu_of, shipped_table
from paceline_kernels.tuned.spaces import SPACES, Blocks, Shape, Space
from paceline_kernels.tuned.table import (
    ANY,
    NO_GPU,
    BadTable,
    Gpu,
    Row,
    Table,
    line_of,
    read_table,
)

__all__ = [
    "ANY",
    "NO_GPU",
    "SPACES",
    "BadTable",
    "Blocks",
    "Gpu",
    "Row",
    "Shape",
    "Space",
    "Table",
    "blocks_of",
    "gpu_of",
    "line_of",
    "read_table",
    "shipped_table",
]
