"""Does some work in a thread while a model is loaded."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from paceline_engine.hardware.placing import leave_core_for_places


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Run `work` in a thread during the block, and wait for it at the end, whatever ends the block.

    Call the yielded function now and then: once `work` has failed it raises the failure, so that a
    block of minutes ends as soon as it is in vain. The end of the block raises it, too.
    """
    with ThreadPoolExecutor(1, "paceline-meanwhile", initializer=leave_core_for_places) as pool:
        begun = pool.submit(work)

        def check() -> None:
            if begun.done():
                begun.result()

        yield check
        begun.result()
