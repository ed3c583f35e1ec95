"""Does some work in a thread while a model is loaded."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from paceline_engine.hardware.placing import leave_core_for_places


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Begin `work`; the block ends after it. What is yielded raises its exception, if it has one.

    So a block that takes minutes need not end before it is known to be in vain.
    """
    with ThreadPoolExecutor(1, "paceline-beside", initializer=leave_core_for_places) as pool:
        begun = pool.submit(work)

        def check() -> None:
            if begun.done():
                begun.result()

        yield check
        begun.result()
