"""Stop strings, found across the borders of tokens and never shown."""


class StopMatcher:
    """Passes text on as soon as it cannot be part of a stop string any more.

    The stop string that is complete first ends the text; of several that end at the same
    character the longest one counts. So the result does not depend on how the text is cut.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._beginnings = frozenset(stop[:n] for stop in stops for n in range(1, len(stop)))
        self._longest_beginning = max((len(stop) - 1 for stop in stops), default=0)
        self._held = ""
        self.met: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> tuple[str, bool]:
        """Text that is safe to show, and whether a stop string was met."""
        if not self._stops:
            return text, False
        self._held += text
        found = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := self._held.find(stop)) >= 0
        ]
        if found:
            _, start, self.met = min(found)
            shown, self._held = self._held[:start], ""
            return shown, True
        safe = len(self._held) - self._undecided()
        shown, self._held = self._held[:safe], self._held[safe:]
        return shown, False

    def flush(self) -> str:
        """What was held back and is no stop string after all, at the end of the text."""
        shown, self._held = self._held, ""
        return shown

    def _undecided(self) -> int:
        """Length of the longest end of the held text that may begin a stop string."""
        longest = min(self._longest_beginning, len(self._held))
        for length in range(longest, 0, -1):
            if self._held[-length:] in self._beginnings:
                return length
        return 0
