"""What the callers behind each named API key have asked for."""

from collections import Counter
from typing import Literal

from paceline_sidecar.metrics.finished_request import FinishedRequest, Outcome

TokenKind = Literal["prompt", "output"]

MAX_NAMES = 64
"""Names with rows of their own; the keys of those that come later are counted together."""
OTHER = "other"
UNNAMED = "unnamed"


class KeyCounts:
    """Requests and tokens by the name of the key. Names are few, whatever the file holds."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, Outcome]] = Counter()
        self.tokens: Counter[tuple[str, TokenKind]] = Counter()
        self._names: set[str] = set()

    def ended(self, record: FinishedRequest) -> None:
        """Count the end of a request that showed a key."""
        if not record.principal.id:
            return
        name = self._shown(record.principal.name)
        self.requests[name, record.outcome] += 1
        self.tokens[name, "prompt"] += record.prompt_tokens
        self.tokens[name, "output"] += record.output_tokens

    def _shown(self, name: str) -> str:
        if not name:
            return UNNAMED
        if name not in self._names and len(self._names) >= MAX_NAMES:
            return OTHER
        self._names.add(name)
        return name
