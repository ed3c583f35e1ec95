"""What a peer's process is told when it starts, and what it answers.

Every environment imports this file, so it needs no package.
"""

import json
import sys
from dataclasses import asdict, dataclass
from typing import Literal

Precision = Literal["default", "float32", "int8", "int4", "q8_0", "q4_k"]
"""`default` is what an engine computes in where nothing is asked of it."""

GGUF: frozenset[Precision] = frozenset({"q8_0", "q4_k"})
"""Those of a GGUF file, whose weights are kept as they are."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One engine's start, sent as one argument of JSON."""

    precision: Precision
    token_budget: int | None
    """Prompt and output tokens in a step, at most; None is the engine's own setting."""
    concurrency: int
    draft_tokens: int
    """Drafted in a step by prompt lookup; 0 drafts none."""
    model: str
    """The path of a folder or file; Paceline takes the embedded model where it is empty."""

    def as_argument(self) -> str:
        """Write it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_arguments(cls) -> "Setup":
        """Read it from this process's only argument."""
        return cls(**json.loads(sys.argv[1]))


@dataclass(frozen=True, slots=True)
class Identity:
    """What an engine tells of itself, once it has started."""

    version: str
    precision: str
    """What it computes in, read from the engine where it tells."""


class Refused(Exception):  # noqa: N818 - an answer to the run, not a fault
    """The engine has no such precision; the message is a sentence that says so."""
