"""`Watched`, of one service without pods."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline_api.labels import Manifest


@dataclass(frozen=True)
class OneService:
    """Knows `default/quick`."""

    live: Manifest
    key: str = "default/quick"
    found: list[Manifest] = field(default_factory=list)
    """Its children."""

    def keys(self) -> Iterable[str]:
        return [self.key]

    def service(self, key: str) -> Manifest | None:
        return self.live if key == self.key else None

    def children(self, key: str) -> Iterable[Manifest]:
        assert key == self.key
        return self.found

    def pods(self, key: str) -> Iterable[Manifest]:
        assert key == self.key
        return []

    def owned(self) -> Iterable[tuple[str, Manifest]]:
        return [(child["kind"], child) for child in self.found]
