"""Compiles a client's output grammar into a matcher that knows which tokens may follow.

llguidance compiles and matches. It computes bitmasks while the text grows and keeps no table of the
vocabulary, so compiling is short; it releases the interpreter's lock during all long work.
Compiling runs in threads beside the step loop, and a callback says when a grammar is ready.
"""

import hashlib
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from

from paceline_engine.core.constraint import (
    Constraint,
    DraftGivenUp,
    TokenBitmask,
    Walk,
    is_allowed,
)
from paceline_engine.grammar.turns import Turns
from paceline_engine.hardware.placing import leave_core
from paceline_wire import Grammar, Submit

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
_MAX_COMPILE_S = 5.0
_MAX_BITMASK_S = 0.05
# Walking ahead takes 5 to 40 us; 9,000 bytes of one constant take 15 ms, once. A grammar whose
# walks repeatedly take longer than this is not walked ahead any more.
_MAX_WALK_S = 0.005
_SLOW_WALKS = 3
_EVERY_TOKEN = np.uint32(2**32 - 1)
# Endless space between JSON's tokens is valid JSON, and what small models fall into.
_JSON_SPACE = r"[\x20\x0A\x09]{0,32}"

_MOST_REFUSED = 1024
_MOST_THREADS = 2
_NICE = 10
# llguidance recurses for each rule that refers to another: a chain of 5,000 overflows the usual
# 8 MiB and would end the process. Only what is touched is ever taken from memory.
_STACK_BYTES = 512 * 1024 * 1024


class GrammarError(ValueError):
    """The grammar is wrong, or costs too much; the message is for the client."""


class TokenMatcher:
    """Implements `Guide` by one llguidance matcher, which one thread at a time may use."""

    def __init__(
        self, compiled: LLMatcher, refuse: Callable[[str], None], eos_token_ids: Sequence[int] = ()
    ) -> None:
        """Copy a compiled matcher at its start.

        `refuse` is told why the grammar costs too much, in whichever thread finds out.
        """
        self._compiled = compiled
        self._matcher = compiled.deep_copy()
        self._refuse = refuse
        self._eos_token_ids = frozenset(eos_token_ids)
        self._num_seen = 0
        self._lock = threading.Lock()
        self._slow_walks_left = _SLOW_WALKS
        self._run: list[int] = []
        """The forced tokens that were found last: a long run of them is found once."""
        self._run_at = 0
        """The place in the output of the first one."""

    def fill_bitmask(self, output_ids: Sequence[int], bitmask: TokenBitmask) -> None:
        """See `Constraint`."""
        with self._lock:
            self._catch_up(output_ids)
            self._fill(bitmask)

    def fill_bitmasks(
        self, output_ids: Sequence[int], draft: Sequence[int], bitmasks: TokenBitmask
    ) -> None:
        """See `Guide`."""
        with self._lock:
            self._catch_up(output_ids)
            self._fill(bitmasks[0])
            followed, is_whole = self._fill_along(draft, bitmasks)
            if not (self._go_back(followed, output_ids) and is_whole):
                self._slow_walks_left = 0
                raise DraftGivenUp

    def walk(self, output_ids: Sequence[int], proposed: Sequence[int], most: int) -> Walk:
        """See `Guide`."""
        if self._slow_walks_left <= 0 or not self._lock.acquire(blocking=False):
            return Walk()
        try:
            started = time.thread_time()
            self._catch_up(output_ids)
            walk = self._walk(len(output_ids), proposed, most)
            if not self._go_back(len(walk.token_ids), output_ids):
                self._slow_walks_left = 0
                return Walk()
            self._slow_walks_left -= time.thread_time() - started > _MAX_WALK_S
            return walk
        finally:
            self._lock.release()

    def _walk(self, place: int, proposed: Sequence[int], most: int) -> Walk:
        """Consume the tokens that may follow; the caller must call `_go_back` afterwards."""
        tokens: list[int] = []
        is_forced: list[bool] = []
        while len(tokens) < most:
            run = self._forced_at(place + len(tokens), is_certain=all(is_forced))
            run = run[: most - len(tokens)]
            is_forced += [True] * len(run)
            if not run:
                run = list(proposed[len(tokens) : len(tokens) + 1])
                is_followed = tokens == list(proposed[: len(tokens)])
                if not run or not is_followed or run[0] in self._eos_token_ids:
                    break
                is_forced.append(False)
            count = self._matcher.try_consume_tokens(run)
            tokens += run[:count]
            if count < len(run):
                break
        return Walk(tuple(tokens), tuple(is_forced[: len(tokens)]))

    def _forced_at(self, place: int, *, is_certain: bool) -> list[int]:
        """Return the forced tokens from a place on, where the matcher stands.

        They are cached if `is_certain`: the output is sure to reach this place.
        """
        passed = place - self._run_at
        if is_certain and 0 <= passed < len(self._run):
            return self._run[passed:]
        run = self._matcher.compute_ff_tokens()
        if is_certain:
            self._run, self._run_at = run, place
        return run

    def _catch_up(self, output_ids: Sequence[int]) -> None:
        """Consume what has come since the last call."""
        if len(output_ids) > self._num_seen:
            self._matcher.consume_tokens(list(output_ids[self._num_seen :]))
            self._num_seen = len(output_ids)

    def _go_back(self, count: int, output_ids: Sequence[int]) -> bool:
        """Roll the matcher back to the output's end; return whether rolling back was enough."""
        if not self._matcher.is_error():
            self._matcher.rollback(count)
            return True
        # A matcher's error is permanent, but draft tokens may have caused it: start over without.
        self._matcher = self._compiled.deep_copy()
        self._matcher.consume_tokens(list(output_ids))
        return False

    def _fill_along(self, draft: Sequence[int], bitmasks: TokenBitmask) -> tuple[int, bool]:
        """Set the bits after each draft token; return how many it followed, and if all went well.

        The caller must call `_go_back` afterwards.
        """
        for followed, token in enumerate(draft):
            if not is_allowed(token, bitmasks[followed]):
                bitmasks[followed + 1 :] = _EVERY_TOKEN  # no token is sampled there
                return followed, True
            if self._matcher.try_consume_tokens([token]) != 1:
                return followed, False
            spent_s = self._compute_mask(bitmasks[followed + 1])
            if self._matcher.is_error() or spent_s > _MAX_BITMASK_S:
                return followed + 1, False
        return len(draft), True

    def _fill(self, bitmask: TokenBitmask) -> None:
        """Set the bits of what may follow the output."""
        spent_s = self._compute_mask(bitmask)
        if self._matcher.is_error():
            raise ValueError(_first_line(self._matcher.get_error()))
        if spent_s > _MAX_BITMASK_S:
            reason = (
                f"the grammar is too complex: a token took {spent_s * 1e3:.0f} ms,"
                f" {_MAX_BITMASK_S * 1e3:.0f} ms are the most"
            )
            self._refuse(reason)
            raise ValueError(reason)

    def _compute_mask(self, bitmask: TokenBitmask) -> float:
        """Set the bits of the tokens that may follow now; return the seconds that it took."""
        # The time of this thread alone: a busy machine is not the grammar's fault.
        started = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(bitmask.ctypes.data, bitmask.nbytes)
        return time.thread_time() - started


class Grammars:
    """Compiles grammars for one model and keeps the latest for later requests.

    What was refused, or proved too costly while it was followed, is refused at once when it comes
    again: by its digest, for texts are long.
    """

    def __init__(
        self, tokenizer_file: Path, *, vocab_size: int, eos_token_ids: Sequence[int], kept: int = 64
    ) -> None:
        self._file = tokenizer_file
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._kept = kept
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._refused: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()
        """Guards `_refused`: threads that compile and threads that match write to it."""

    def refusal(self, grammar: Grammar) -> str:
        """Return why a grammar was refused before; empty where it was not."""
        return self._refused.get(_digest(grammar), "")

    def constraint(self, grammar: Grammar) -> TokenMatcher:
        """Compile, or copy what was compiled before; raises `GrammarError`."""
        if refused := self.refusal(grammar):
            raise GrammarError(refused)
        matcher = self._compiled.get(grammar)
        if matcher is None:
            try:
                matcher = self._compile(grammar)
            except GrammarError as error:
                self._refuse(_digest(grammar), str(error))
                raise
            self._compiled[grammar] = matcher
            while len(self._compiled) > self._kept:
                self._compiled.popitem(last=False)
        refuse = partial(self._refuse, _digest(grammar))
        return TokenMatcher(matcher, refuse, self._eos_token_ids)

    def _refuse(self, digest: bytes, reason: str) -> None:
        with self._lock:
            self._refused[digest] = reason
            while len(self._refused) > _MOST_REFUSED:
                self._refused.popitem(last=False)

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
        if spent_s > _MAX_COMPILE_S:
            raise GrammarError(
                f"it takes {spent_s:.0f} s to compile, {_MAX_COMPILE_S:.0f} s are the most"
            )
        return matcher

    def _load_tokenizer(self) -> LLTokenizer:
        """Load the tokenizer when the first grammar comes: it takes a second."""
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


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A request with its compiled grammar, or with the reason why there is none."""

    submit: Submit
    constraint: Constraint | None = None
    error: str = ""


class GrammarCompiler:
    """Compiles in a few threads for the requests that wait. Owned by the step loop's thread."""

    def __init__(
        self,
        grammars: Grammars,
        done: Callable[[CompiledGrammar], None],
        *,
        num_threads: int | None = None,
    ) -> None:
        """`done` is called in a thread. One for each core that may be used, two at most."""
        self._grammars = grammars
        self._done = done
        self._waiting: set[str] = set()
        self._turns: Turns[Submit] = Turns()
        count = num_threads or min(len(os.sched_getaffinity(0)), _MOST_THREADS)
        self._pool = ThreadPoolExecutor(count, "paceline-grammar", initializer=_yield_to_step_loop)

    def __len__(self) -> int:
        """Count the requests that wait."""
        return len(self._waiting)

    def start(self, submit: Submit) -> None:
        """Compile the request's grammar; `done` is called when it is."""
        self._waiting.add(submit.id)
        refused = self._grammars.refusal(submit.grammar) if submit.grammar else ""
        if refused:  # answered at once: there is nothing to compile
            self._done(CompiledGrammar(submit, error=refused))
            return
        # The pool starts a thread when it is given work, so its stack is set here.
        self._turns.add(submit, caller=submit.caller)
        usual = threading.stack_size(_STACK_BYTES)
        try:
            self._pool.submit(self._compile_in_turn)
        finally:
            threading.stack_size(usual)

    def take(self, compiled: CompiledGrammar) -> bool:
        """Accept what `done` was called with; False if the request was forgotten meanwhile."""
        if compiled.submit.id not in self._waiting:
            return False
        self._waiting.remove(compiled.submit.id)
        return True

    def forget(self, ids: list[str]) -> list[str]:
        """Forget requests; return those of them that waited."""
        known = [id_ for id_ in ids if id_ in self._waiting]
        self._waiting.difference_update(known)
        return known

    def forget_all(self) -> None:
        """Forget every request."""
        self._waiting.clear()

    def close(self) -> None:
        """Compile nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile_in_turn(self) -> None:
        """Compile queued grammars until every waiting caller has another one in progress."""
        while (taken := self._turns.take()) is not None:
            submit, caller = taken
            try:
                self._compile(submit)
            finally:
                self._turns.done(caller)

    def _compile(self, submit: Submit) -> None:
        if submit.id not in self._waiting or submit.grammar is None:
            return
        try:
            compiled = CompiledGrammar(submit, self._grammars.constraint(submit.grammar))
        except GrammarError as error:
            compiled = CompiledGrammar(submit, error=str(error))
        except Exception as error:  # noqa: BLE001 - an error of the library ends this request and no other
            compiled = CompiledGrammar(submit, error=f"{type(error).__name__}: {error}")
        self._done(compiled)


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


def _digest(grammar: Grammar) -> bytes:
    return hashlib.sha256(f"{grammar.kind} {grammar.text}".encode("utf-8", "replace")).digest()


def _first_line(text: str) -> str:
    """Cut llguidance's message before the grammar, which it repeats."""
    return text.strip().split("\n", 1)[0][:300]


def _yield_to_step_loop() -> None:
    """Leave the step loop's core and lower this thread's priority, so the step loop comes first."""
    leave_core()
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
