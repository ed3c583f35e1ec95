"""From logits to tokens: greedy or drawn, cut by top-k, top-p and min-p, without a sort."""

from paceline_kernels.dispatch import by_device
from paceline_kernels.sampling.reference import NOT_A_TOKEN
from paceline_kernels.sampling.reference import forbid as reference_forbid
from paceline_kernels.sampling.reference import penalise as reference_penalise
from paceline_kernels.sampling.reference import sample_tokens as reference_sample_tokens
from paceline_kernels.sampling.reference import token_likelihoods as reference_token_likelihoods

forbid = by_device(reference_forbid)
penalise = by_device(reference_penalise)
sample_tokens = by_device(reference_sample_tokens)
token_likelihoods = by_device(reference_token_likelihoods)

__all__ = [
    "NOT_A_TOKEN",
    "forbid",
    "penalise",
    "reference_forbid",
    "reference_penalise",
    "reference_sample_tokens",
    "reference_token_likelihoods",
    "sample_tokens",
    "token_likelihoods",
]
