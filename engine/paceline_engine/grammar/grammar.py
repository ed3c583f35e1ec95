"""From what a client wants its output to be to a matcher that knows which tokens may come next.

Compiled by llguidance, which computes masks while the text grows and keeps no table of the
vocabulary, so compiling is short; all long work of it lets go of the interpreter's lock.
"""

import json
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from

from paceline_engine.grammar.constraint import Words
from paceline_wire import Grammar

# What one grammar may cost. Seen on a 2-core machine with a vocabulary of 49,152: a schema of
# 5,000 fields compiles in 1 s; 64 KiB that are made to explode take 15 s and are refused.
_LIMITS = LLParserLimits(
    step_lexer_fuel=50_000,
    step_max_items=50_000,
    max_items_in_row=20_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
_MOST_COMPILING_S = 5.0
_MOST_MASK_S = 0.05
# Endless space between JSON's tokens is valid JSON, and what small models fall into.
_JSON_SPACE = r"[\x20\x0A\x09]{0,32}"


class GrammarError(ValueError):
    """The grammar is wrong, or costs too much; the message is for the client."""


class TokenMatcher:
    """Implements `Constraint` by one llguidance matcher."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._num_seen = 0

    def allowed(self, output_ids: Sequence[int], words: Words) -> None:
        """Fill `words` with the tokens that may come next."""
        self._matcher.consume_tokens(list(output_ids[self._num_seen :]))
        self._num_seen = len(output_ids)
        # Of this thread alone: a busy machine is not the grammar's fault.
        started = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        spent_s = time.thread_time() - started
        if self._matcher.is_error():
            raise ValueError(_first_line(self._matcher.get_error()))
        if spent_s > _MOST_MASK_S:
            raise ValueError(
                f"the grammar is too complex: a token took {spent_s * 1e3:.0f} ms,"
                f" {_MOST_MASK_S * 1e3:.0f} ms are the most"
            )


class Grammars:
    """Compiles grammars for one model; what was compiled is kept for the next request."""

    def __init__(
        self, tokenizer_file: Path, *, vocab_size: int, eos_token_ids: Sequence[int], kept: int = 64
    ) -> None:
        self._file = tokenizer_file
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._kept = kept
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def constraint(self, grammar: Grammar) -> TokenMatcher:
        """Compile, or copy what was compiled before; raises `GrammarError`."""
        matcher = self._compiled.get(grammar)
        if matcher is None:
            matcher = self._compile(grammar)
            self._compiled[grammar] = matcher
            while len(self._compiled) > self._kept:
                self._compiled.popitem(last=False)
        return TokenMatcher(matcher.deep_copy())

    def _compile(self, grammar: Grammar) -> LLMatcher:
        started = time.thread_time()
        tokenizer = self._load_tokenizer()
        matcher = LLMatcher(tokenizer, _source(grammar), log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            # The first mask fills caches that every copy has.
            matcher.deep_copy().compute_bitmask()
        if matcher.is_error():
            raise GrammarError(_first_line(matcher.get_error()))
        spent_s = time.thread_time() - started
        if spent_s > _MOST_COMPILING_S:
            raise GrammarError(
                f"it takes {spent_s:.0f} s to compile, {_MOST_COMPILING_S:.0f} s are the most"
            )
        return matcher

    def _load_tokenizer(self) -> LLTokenizer:
        """Once, when the first grammar comes: it takes a second."""
        if self._tokenizer is None:
            if not self._eos_token_ids:
                raise GrammarError("the model has no end-of-sequence token, so it could not end")
            try:
                self._tokenizer = LLTokenizer(
                    self._file.read_text(encoding="utf-8"),
                    n_vocab=self._vocab_size,
                    eos_token=self._eos_token_ids,
                )
            except (OSError, ValueError) as error:
                raise GrammarError(f"not with this model's tokenizer: {error}") from error
        return self._tokenizer


def _source(grammar: Grammar) -> str:
    try:
        if grammar.kind == "json_schema":
            space: Any = {"whitespace_pattern": _JSON_SPACE}
            return LLMatcher.grammar_from_json_schema(grammar.text, overrides=space)
        if grammar.kind == "choice" and not json.loads(grammar.text):
            raise GrammarError("there is nothing to choose from")
        return grammar_from(grammar.kind, grammar.text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(_first_line(str(error))) from error


def _first_line(text: str) -> str:
    """What matters of llguidance's messages, which go on with the grammar itself."""
    return text.strip().split("\n", 1)[0][:300]
