"""Argo CD's health check of an InferenceService, run as Argo CD runs it."""

from pathlib import Path
from typing import Any

from lupa.lua51 import LuaRuntime  # Argo CD runs Lua 5.1

from paceline_api.labels import Manifest

CHECK = Path(__file__).parents[2] / "deploy" / "argocd" / "health.lua"


def health(service: Manifest) -> tuple[str, str]:
    """Return status and message: the object is a global of the check, the answer its table."""
    # lupa's types leave out what it takes.
    runtime: Any = LuaRuntime
    lua = runtime(register_eval=False, register_builtins=False, unpack_returned_tuples=True)
    lua.globals()["obj"] = lua.table_from(service, recursive=True)
    answer = lua.execute(CHECK.read_text())
    return answer["status"], answer["message"]
