"""The prefix cache of one pod: the beginnings of applications, and the histories of sessions."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from balancing.sessions import Turn

_BLOCK_TOKENS: Final = 16
_Key = tuple[str, int]


@dataclass(slots=True)
class PrefixCache:
    """Entries by their last use; the one unused for longest goes first."""

    tokens: int = 0
    _entries: OrderedDict[_Key, int] = field(default_factory=OrderedDict)

    def find(self, turn: Turn) -> int:
        """Count the prompt's tokens that are held: whole blocks, and never all of them."""
        application, session = _keys(turn)
        if application not in self._entries:
            return 0
        held = turn.shared
        if session in self._entries:
            held += self._entries[session]
            self._entries.move_to_end(session)
        self._entries.move_to_end(application)  # after its session: it must not go before it
        return min(held, turn.prompt - 1) // _BLOCK_TOKENS * _BLOCK_TOKENS

    def keep(self, turn: Turn, room: int) -> None:
        """Hold a turn's prompt and answer, within so many tokens of all together."""
        application, session = _keys(turn)
        for key, tokens in ((session, turn.own), (application, turn.shared)):
            self.tokens += tokens - self._entries.get(key, 0)
            self._entries[key] = tokens
            self._entries.move_to_end(key)
        while self.tokens > room and self._entries:
            self.tokens -= self._entries.popitem(last=False)[1]


def _keys(turn: Turn) -> tuple[_Key, _Key]:
    return ("application", turn.application), ("session", turn.session)
