"""Settings of engine, sidecar and operator -> the tables of docs/processes.md.

A variable means what the docstring below its field says. It is read from the source: a model that
reads it itself (`use_attribute_docstrings`) makes each start of the process 25 ms longer.
"""

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from paceline_engine.settings import Settings as EngineSettings
from paceline_operator.settings import OperatorSettings
from paceline_sidecar.settings import SidecarSettings

_SETTINGS: Final[dict[str, type[BaseSettings]]] = {
    "engine": EngineSettings,
    "sidecar": SidecarSettings,
    "operator": OperatorSettings,
}
DEFAULTS: Final = {
    "PACELINE_ENGINE_MAX_MODEL_LEN": "the model's own, 2048 at most on a CPU",
    "PACELINE_ENGINE_KV_CACHE_BYTES": "on a CPU what the fraction leaves, at most 1 GiB",
    "PACELINE_ENGINE_INITIAL_BATCH_SIZE": "the capacity",
    "PACELINE_ENGINE_INITIAL_TOKEN_BUDGET": "the capacity",
    "PACELINE_ENGINE_PROFILE_S": "`3` beside a GPU, `0` on a CPU",
    "PACELINE_SIDECAR_SERVED_NAME": "the model's name",
    "PACELINE_SIDECAR_RUNTIME_TOKEN_FILE": "none: `/runtime/*` is closed",
    "PACELINE_SIDECAR_API_KEYS_FILE": "none: no auth",
    "PACELINE_SIDECAR_BATCH_DIR": "none: a temporary folder that ends with the process",
    "PACELINE_OPERATOR_ENGINE_IMAGE": "`paceline/engine:TAG`",
    "PACELINE_OPERATOR_SIDECAR_IMAGE": "`paceline/sidecar:TAG`",
}
"""What to say in place of a field's own default, which is found later, or goes with the version."""
_SIZES: Final = {"MiB": 1024**2, "KiB": 1024}


def tables() -> dict[str, str]:
    """Return the page's tables by the name of their markers."""
    return {process: _table(settings) for process, settings in _SETTINGS.items()}


def _table(settings: type[BaseSettings]) -> str:
    meanings = dict(_meanings(settings))
    rows = ["| Variable | Default | Meaning |", "|---|---|---|"]
    for name, field in settings.model_fields.items():
        variable = _variable(settings, name, field)
        default = DEFAULTS.get(variable) or _default(variable, field.default)
        rows.append(f"| `{variable}` | {default} | {meanings[name]} |")
    return "\n".join(rows)


def _meanings(settings: type[BaseSettings]) -> Iterator[tuple[str, str]]:
    (written,) = ast.parse(inspect.getsource(settings)).body
    assert isinstance(written, ast.ClassDef)
    for field, below in pairwise(written.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                yield name, " ".join(str(text).split()).replace("|", "\\|")


def _variable(settings: type[BaseSettings], name: str, field: FieldInfo) -> str:
    if isinstance(field.validation_alias, str):
        return field.validation_alias
    return settings.model_config.get("env_prefix", "") + name.upper()


def _default(variable: str, value: Any) -> str:
    match value:
        case None | "" | ():
            return "none"
        case bool():
            return f"`{value}`".lower()
        case int() if value and variable.endswith("_BYTES"):
            whole = (f"{value // n} {unit}" for unit, n in _SIZES.items() if value % n == 0)
            return next(whole, f"`{value}`")
        case float():
            return f"`{value:g}`"
        case _:
            return f"`{value}`"
