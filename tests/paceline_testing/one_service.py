"""`Watched`, of one service without children and pods."""

from collections.abc import Iterable
from dataclasses import dataclass

from paceline_api.labels import Manifest


@dataclass(frozen=True)
class OneService:
    """Knows `default/quick`."""

    live: Manifest
    key: str = "default/quick"

    def keys(self) -> Iterable[str]:
        return [self.key]

    def service(self, key: str) -> Manifest | None:
        return self.live if key == self.key else None

    def children(self, key: str) -> Iterable[Manifest]:
        assert key == self.key
        return []

    def pods(self, key: str) -> Iterable[Manifest]:
        assert key == self.key
        return []

    def owned(self) -> Iterable[tuple[str, Manifest]]:
        return ()
