"""A Hugging Face hub on loopback with one repository: what the real client asks, and no more."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Final

COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY: Final = "org/tiny"
TOKEN: Final = "hub-token"


class _Handler(BaseHTTPRequestHandler):
    """Answers for the files in `folder`, to who shows the token."""

    def __init__(self, folder: Path, *args: object) -> None:
        self._folder = folder
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the tests' output clean."""

    def _answer(self, *, with_body: bool) -> None:
        content = self._content()
        if self.headers.get("authorization") != f"Bearer {TOKEN}":
            self.send_response(403)
            self.send_header("x-error-code", "GatedRepo")
            content = b"{}"
        elif content is None:
            self.send_response(404)
            self.send_header("x-error-code", self._what_is_missing())
            content = b"{}"
        else:
            self.send_response(200)
            self.send_header("x-repo-commit", COMMIT)
            self.send_header("etag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def _content(self) -> bytes | None:
        path = self.path.partition("?")[0]
        files = sorted(file.name for file in self._folder.iterdir())
        if path in {f"/api/models/{REPOSITORY}/revision/{at}" for at in ("main", "v1", COMMIT)}:
            siblings = [{"rfilename": name} for name in files]
            return json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}).encode()
        if path == f"/api/models/{REPOSITORY}/tree/{COMMIT}":
            sizes = {name: (self._folder / name).stat().st_size for name in files}
            entries = [
                {"type": "file", "path": name, "size": size, "oid": "0"}
                for name, size in sizes.items()
            ]
            return json.dumps(entries).encode()
        name = path.removeprefix(f"/{REPOSITORY}/resolve/{COMMIT}/")
        return (self._folder / name).read_bytes() if name in files else None

    def _what_is_missing(self) -> str:
        return "RevisionNotFound" if f"/{REPOSITORY}/" in self.path else "RepoNotFound"


@contextmanager
def fake_hub(folder: Path) -> Iterator[str]:
    """Serve `folder` as `org/tiny`; the hub's address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, folder)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
