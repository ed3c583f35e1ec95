"""Compiles grammars beside the step loop; whoever waits for one is told through a callback."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from paceline_engine.grammar.constraint import Constraint
from paceline_engine.grammar.grammar import GrammarError, Grammars
from paceline_wire import Submit

_THREADS = 2
_NICE = 10
# llguidance calls itself for each rule that refers to another: a chain of 5,000 overflows the
# usual 8 MiB and would end the process. Only what is touched is ever taken from memory.
_STACK_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Compiled:
    """A request whose grammar is ready, or is refused."""

    submit: Submit
    constraint: Constraint | None = None
    error: str = ""


class Compiling:
    """The requests that wait for their grammar. Owned by the step loop's thread."""

    def __init__(self, grammars: Grammars, done: Callable[[Compiled], None]) -> None:
        self._grammars = grammars
        self._done = done
        """Called in a thread of the pool."""
        self._waiting: set[str] = set()
        self._pool = ThreadPoolExecutor(_THREADS, "paceline-grammar", initializer=_give_way)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def start(self, submit: Submit) -> None:
        """Compile the request's grammar; `done` is called when it is."""
        self._waiting.add(submit.id)
        # The pool starts a thread when it is given work, so its stack is set here.
        usual = threading.stack_size(_STACK_BYTES)
        try:
            self._pool.submit(self._compile, submit)
        finally:
            threading.stack_size(usual)

    def take(self, compiled: Compiled) -> bool:
        """Take in what `done` was told; False for a request that was forgotten meanwhile."""
        if compiled.submit.id not in self._waiting:
            return False
        self._waiting.remove(compiled.submit.id)
        return True

    def forget(self, ids: list[str]) -> list[str]:
        """Forget requests; those of them that waited."""
        known = [id_ for id_ in ids if id_ in self._waiting]
        self._waiting.difference_update(known)
        return known

    def forget_all(self) -> None:
        """Forget every request."""
        self._waiting.clear()

    def close(self) -> None:
        """Compile nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, submit: Submit) -> None:
        if submit.id not in self._waiting or submit.grammar is None:
            return
        try:
            compiled = Compiled(submit, self._grammars.constraint(submit.grammar))
        except GrammarError as error:
            compiled = Compiled(submit, error=str(error))
        except Exception as error:  # noqa: BLE001 - a library's: its request ends, no other
            compiled = Compiled(submit, error=f"{type(error).__name__}: {error}")
        self._done(compiled)


def _give_way() -> None:
    """The step loop comes first where cores are few."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
