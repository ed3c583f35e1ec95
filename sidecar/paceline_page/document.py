"""The page's file, and the policy under which a browser runs it."""

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class Document:
    """The page: the same for every service, and it says nothing of any."""

    html: bytes
    policy: str
    """Its content security policy: nothing but its own script and style runs."""


@cache
def document() -> Document:
    """Return the page; it asks for its events at its own path and `/events`."""
    page = resources.files("paceline_page").joinpath("page.html").read_text(encoding="utf-8")
    script, style = (
        " ".join(
            f"'sha256-{_digest(text)}'"
            for text in re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        )
        for tag in ("script", "style")
    )
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Document(page.encode(), policy)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
