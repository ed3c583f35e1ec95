"""Split what a model that thinks writes into its thoughts and its answer.

Such models write `<think>...</think>` before they answer. Some templates open the thought
themselves, at the end of the prompt; then the output begins in the middle of it. A template that
switches thinking off closes it there as well.
"""

from typing import Literal

from paceline_sidecar.text.tool_call_parser import overlap

OPEN, CLOSE = "<think>", "</think>"


def thinks(template: str) -> bool:
    """Tell from its chat template whether a model thinks before it answers."""
    return OPEN in template or CLOSE in template


class ThoughtSplitter:
    """Splits one choice; takes text piece by piece and passes each on at once."""

    def __init__(self, *, is_open: bool) -> None:
        self._state: Literal["undecided", "thinking", "answering"] = "undecided"
        self._held = ""
        self._is_first = True
        """Whether nothing of a thought, or of what comes after it, was passed on yet."""
        if is_open:
            self._state = "thinking"

    def push(self, text: str, *, ended: bool) -> tuple[str, str]:
        """Return what the text adds to the thought and to the answer."""
        self._held += text
        if self._state == "undecided":
            start = self._held.lstrip()
            if OPEN.startswith(start) and len(start) < len(OPEN) and not ended:
                return "", ""
            if not start.startswith(OPEN):
                self._state, self._is_first = "answering", False
            else:
                self._state, self._held = "thinking", start.removeprefix(OPEN)
        thought = self._think(ended=ended) if self._state == "thinking" else ""
        return thought, self._answer() if self._state == "answering" else ""

    def _think(self, *, ended: bool) -> str:
        before, tag, after = self._held.partition(CLOSE)
        if tag:
            thought = self._opened(before)
            self._state, self._held, self._is_first = "answering", after, True
            return thought
        safe = len(self._held) - (0 if ended else overlap(self._held, CLOSE))
        thought, self._held = self._held[:safe], self._held[safe:]
        return self._opened(thought)

    def _answer(self) -> str:
        answer, self._held = self._held, ""
        return self._opened(answer)

    def _opened(self, text: str) -> str:
        """Drop the space around tags, which belongs to their format."""
        if self._is_first:
            text = text.lstrip()
            self._is_first = not text
        return text
