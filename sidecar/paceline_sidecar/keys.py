"""Who may call: API keys on the public port, one bearer token on the admin port."""

import hashlib
import hmac
from pathlib import Path

from paceline_sidecar.errors import Unauthorized
from paceline_sidecar.watched_file import WatchedFile

_SCHEME = "bearer "


class BearerKeys:
    """The keys of a watched file; without a readable key nobody is let in."""

    def __init__(self, path: Path) -> None:
        self._file = WatchedFile(path)
        self._text = ""
        self._digests: list[bytes] = []

    def check(self, authorization: str | None) -> str:
        """Return a name for the caller that does not reveal the key; raises `Unauthorized`."""
        if authorization is None or not authorization.lower().startswith(_SCHEME):
            raise Unauthorized("A key is needed: `Authorization: Bearer KEY`.")
        offered = _digest(authorization[len(_SCHEME) :].strip())
        # Every key is compared in constant time, so the time of the answer reveals nothing.
        matches = [hmac.compare_digest(offered, digest) for digest in self._known()]
        if not any(matches):
            raise Unauthorized("The key is not known.")
        return offered.hex()[:16]

    def _known(self) -> list[bytes]:
        text = self._file.text()
        if text != self._text:
            lines = (line.strip() for line in text.splitlines())
            self._digests = [_digest(line) for line in lines if line]
            self._text = text
        return self._digests


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
