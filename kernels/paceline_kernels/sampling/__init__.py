"""From logits to tokens: greedy or drawn, cut by top-k, top-p and min-p, without a sort."""

from paceline_kernels.dispatch import by_device
from paceline_kernels.sampling.reference import NOT_A_TOKEN
from paceline_kernels.sampling.reference import sample_tokens as reference_sample_tokens

sample_tokens = by_device(reference_sample_tokens)

__all__ = ["NOT_A_TOKEN", "reference_sample_tokens", "sample_tokens"]
