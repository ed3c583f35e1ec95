"""From rows that live for long to the inputs of one step, without a copy from the host for each."""

from paceline_kernels.dispatch import by_device
from paceline_kernels.input_prep.reference import DRAW_COLUMNS
from paceline_kernels.input_prep.reference import keep_tokens as reference_keep_tokens
from paceline_kernels.input_prep.reference import lay_out_draws as reference_lay_out_draws
from paceline_kernels.input_prep.reference import lay_out_step as reference_lay_out_step
from paceline_kernels.input_prep.reference import write_rows as reference_write_rows

keep_tokens = by_device(reference_keep_tokens)
lay_out_draws = by_device(reference_lay_out_draws)
lay_out_step = by_device(reference_lay_out_step)
write_rows = by_device(reference_write_rows)

__all__ = [
    "DRAW_COLUMNS",
    "keep_tokens",
    "lay_out_draws",
    "lay_out_step",
    "reference_keep_tokens",
    "reference_lay_out_draws",
    "reference_lay_out_step",
    "reference_write_rows",
    "write_rows",
]
