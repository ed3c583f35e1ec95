"""Requests that the engine refuses, each in a sentence that names the field and the rule.

The sidecar checks what a client sends, in the client's words. This check is the second: whatever
reaches the scheduler can be run.
"""

import math

from paceline_wire import Sampling, Submit
from paceline_wire.limits import Capacity

MAX_LOGPROBS = 20
"""The most alternatives to a token whose logprobs can be asked for."""
MAX_PENALTY = 2.0
MAX_BIAS = 100.0


def refusal(submit: Submit, *, capacity: Capacity, vocab_size: int) -> str | None:
    """Say why a request cannot be run, or None if it can."""
    return (
        _bad_prompt(submit.prompt_ids, vocab_size)
        or _bad_sampling(submit.sampling, vocab_size)
        or _bad_scores(submit.sampling, vocab_size)
        or _bad_ending(submit)
        or _too_long(len(submit.prompt_ids), submit.sampling.max_tokens, capacity)
    )


def _bad_prompt(prompt_ids: list[int], vocab_size: int) -> str | None:
    if not prompt_ids:
        return "prompt_ids must hold at least one token, got none"
    lowest, highest = min(prompt_ids), max(prompt_ids)
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        return f"prompt_ids must be in [0, {vocab_size}), got {wrong}"
    return None


def _bad_sampling(sampling: Sampling, vocab_size: int) -> str | None:
    rules = (
        (sampling.max_tokens >= 1, "max_tokens must be at least 1", sampling.max_tokens),
        (
            sampling.temperature >= 0 and math.isfinite(sampling.temperature),
            "temperature must be a number of at least 0",
            sampling.temperature,
        ),
        (0 < sampling.top_p <= 1, "top_p must be in (0, 1]", sampling.top_p),
        (sampling.top_k >= 0, "top_k must be at least 0", sampling.top_k),
        (
            0 <= sampling.min_tokens <= sampling.max_tokens,
            f"min_tokens must be in [0, max_tokens = {sampling.max_tokens}]",
            sampling.min_tokens,
        ),
        (
            all(0 <= token < vocab_size for token in sampling.stop_token_ids),
            f"stop_token_ids must be in [0, {vocab_size})",
            list(sampling.stop_token_ids),
        ),
        (
            sampling.seed is None or -(2**63) <= sampling.seed < 2**63,
            "seed must fit in 64 bits",
            sampling.seed,
        ),
    )
    return next((f"{rule}, got {value}" for holds, rule, value in rules if not holds), None)


def _bad_scores(sampling: Sampling, vocab_size: int) -> str | None:
    penalties = {
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }
    counts = {"logprobs": sampling.logprobs, "prompt_logprobs": sampling.prompt_logprobs}
    biases = sampling.logit_bias
    rules: tuple[tuple[bool, str, object], ...] = (
        *(
            (abs(value) <= MAX_PENALTY, f"{name} must be in [-{MAX_PENALTY}, {MAX_PENALTY}]", value)
            for name, value in penalties.items()
        ),
        (
            sampling.repetition_penalty > 0 and math.isfinite(sampling.repetition_penalty),
            "repetition_penalty must be a number above 0",
            sampling.repetition_penalty,
        ),
        (0 <= sampling.min_p <= 1, "min_p must be in [0, 1]", sampling.min_p),
        (
            all(0 <= token < vocab_size for token in biases),
            f"logit_bias must name tokens in [0, {vocab_size})",
            list(biases),
        ),
        (
            all(abs(bias) <= MAX_BIAS for bias in biases.values()),
            f"logit_bias must be in [-{MAX_BIAS}, {MAX_BIAS}]",
            list(biases.values()),
        ),
        *(
            (
                count is None or 0 <= count <= MAX_LOGPROBS,
                f"{name} must be in [0, {MAX_LOGPROBS}]",
                count,
            )
            for name, count in counts.items()
        ),
    )
    return next((f"{rule}, got {value}" for holds, rule, value in rules if not holds), None)


def _bad_ending(submit: Submit) -> str | None:
    """A structured output ends where its grammar does."""
    sampling = submit.sampling
    if submit.grammar is not None and (sampling.ignore_eos or sampling.min_tokens):
        return "a structured output must have neither ignore_eos nor min_tokens, got one of them"
    return None


def _too_long(num_prompt: int, max_tokens: int, capacity: Capacity) -> str | None:
    total = num_prompt + max_tokens
    asked = f"got {num_prompt} + {max_tokens}"
    if total > capacity.max_model_len:
        return f"prompt and max_tokens must be at most {capacity.max_model_len} tokens, {asked}"
    # The last token is only given out: its keys and values are never needed.
    slots = capacity.num_blocks * capacity.block_size
    if total - 1 > slots:
        return f"prompt and max_tokens must fit the KV cache of {slots} tokens, {asked}"
    return None
