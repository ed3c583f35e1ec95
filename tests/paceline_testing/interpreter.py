"""Triton's interpreter, without what it does again for every call of one function by another."""

from typing import Any

import pytest
from triton.runtime import interpreter


def patch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the interpreter replace Triton's language once per launch.

    It looks through the whole language at each call of a device function, which takes a
    millisecond: most of the time of kernels with many small steps.
    """
    patch: Any = interpreter._patch_lang
    launch: Any = interpreter.GridExecutor.__call__
    patched: set[tuple[int, ...]] = set()

    def patch_unless_done(function: Any) -> Any:
        names = ("tl", "core", "language")
        languages = tuple(id(function.__globals__.get(name)) for name in names)
        if languages in patched:
            return None
        patched.add(languages)
        return patch(function)

    def launch_afresh(self: Any, *args: Any, **kwargs: Any) -> Any:
        patched.clear()
        return launch(self, *args, **kwargs)

    monkeypatch.setattr(interpreter, "_patch_lang", patch_unless_done)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch_afresh)
