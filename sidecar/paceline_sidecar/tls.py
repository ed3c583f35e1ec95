"""A certificate that is replaced while we run serves the next handshake."""

import asyncio
import hashlib
import logging

import uvicorn

from paceline_sidecar.settings import SidecarSettings
from paceline_sidecar.watched_file import WatchedFile

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 5.0


async def reload_certificate(config: uvicorn.Config, settings: SidecarSettings) -> None:
    """Watch the files until cancelled; nothing to do without TLS."""
    certificate, key = settings.tls_cert_file, settings.tls_key_file
    if config.ssl is None or certificate is None or key is None:
        return
    files = (WatchedFile(certificate, _digest), WatchedFile(key, _digest))
    served = [file.read() for file in files]
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        found = [file.read() for file in files]
        if found == served:
            continue
        try:
            config.ssl.load_cert_chain(certificate, key)
        except OSError as problem:  # an SSLError is one, too
            # The two files are replaced one after the other: they fit again at the next look.
            _log.warning("the new certificate and key cannot be used (%s); the old stay", problem)
        else:
            served = found
            _log.info("the certificate was replaced")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
