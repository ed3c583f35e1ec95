"""Who may call: API keys on the public port, one bearer token on the admin port.

A line of the file is a key, or a name and its key: `team-a: KEY`. What follows the name's colon is
a space, which no bearer token holds (RFC 6750), so a key with a colon inside stays a key. Lines
that share a name are one caller: an old and a new key while they are exchanged.
"""

import hmac
import logging
import re
import secrets
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from paceline_sidecar.errors import Unauthorized
from paceline_sidecar.watched_file import WatchedFile

_log = logging.getLogger(__name__)

_SCHEME = "bearer "
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}:")


@dataclass(frozen=True, slots=True)
class Principal:
    """Whom a key stands for."""

    name: str = ""
    """The name beside the key; empty where it has none."""
    id: str = ""
    """Tells callers apart and does not reveal the key; empty where no key is asked for."""


ANYONE = Principal()
"""The caller of a port that asks for no key."""


class BearerKeys:
    """The keys of a watched file; without a readable key nobody is let in.

    Memory holds digests alone, and those under a secret of this process, or of the folder whose
    files callers shall find again after a restart: who reads them cannot
    try guesses at the keys elsewhere, and the time of a look-up tells nothing that could be used.
    """

    def __init__(self, path: Path, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(32)
        self._file = WatchedFile(path, partial(_principals, secret=self._secret))

    def check(self, authorization: str | None) -> Principal:
        """Return who calls; raises `Unauthorized`."""
        if authorization is None or not authorization.lower().startswith(_SCHEME):
            raise Unauthorized("A key is needed: `Authorization: Bearer KEY`.")
        offered = _digest(self._secret, authorization[len(_SCHEME) :].strip())
        principal = self._file.read().get(offered)
        if principal is None:
            raise Unauthorized("The key is not known.")
        return principal


def authorise(token: BearerKeys | None, authorization: str | None) -> None:
    """Let the runtime API's own callers in; raises `Unauthorized`."""
    if token is None:
        raise Unauthorized("The runtime API is closed: no token file is set.")
    token.check(authorization)


def _principals(text: str, *, secret: bytes) -> dict[bytes, Principal]:
    found: dict[bytes, Principal] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        match line.split():
            case []:
                continue
            case [first, *_] if first.startswith("#"):
                continue
            case [key]:
                digest = _digest(secret, key)
                found[digest] = Principal("", digest.hex()[:32])
            case [name, key] if _NAME.fullmatch(name):
                identity = _digest(secret, f"{name} ")  # no key ends with a space
                found[_digest(secret, key)] = Principal(name[:-1], identity.hex()[:32])
            case _:
                _log.warning("line %d of the keys is not `KEY` or `NAME: KEY`: left out", number)
    return found


def _digest(secret: bytes, text: str) -> bytes:
    return hmac.digest(secret, text.encode("utf-8", "surrogateescape"), "sha256")
