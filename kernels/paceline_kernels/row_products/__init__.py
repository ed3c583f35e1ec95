"""Products of few rows, with the norm before them and the gate or the residual behind them."""

from paceline_kernels.dispatch import by_device
from paceline_kernels.row_products.reference import ARRIVALS, MAX_ROWS, Gate, RowNorm
from paceline_kernels.row_products.reference import add_row_product as reference_add_row_product
from paceline_kernels.row_products.reference import row_product as reference_row_product

row_product = by_device(reference_row_product)
add_row_product = by_device(reference_add_row_product)

__all__ = [
    "ARRIVALS",
    "MAX_ROWS",
    "Gate",
    "RowNorm",
    "add_row_product",
    "reference_add_row_product",
    "reference_row_product",
    "row_product",
]
