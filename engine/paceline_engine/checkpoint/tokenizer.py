"""The tokenizer's files, as the sidecar reads them from the run directory."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A `tokenizer.json` and the little that is needed beside it."""

    tokenizer_json: str
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None

    def write(self, run_dir: Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, each whole or not at all."""
        config = {
            "chat_template": self.chat_template,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
        }
        present = {name: value for name, value in config.items() if value is not None}
        files = {
            "tokenizer.json": self.tokenizer_json,
            "tokenizer_config.json": json.dumps(present),
        }
        for name, text in files.items():
            partial = run_dir / f".{name}.partial"
            partial.write_text(text, encoding="utf-8")
            partial.replace(run_dir / name)


NO_TOKENIZER = TokenizerFiles("{}", None, None, None)
"""For what computes and reads no text."""


def unique_ids(groups: Iterable[int | list[int] | None]) -> tuple[int, ...]:
    """Flatten ids given alone, in lists or not at all; the first mention decides the order."""
    ids: dict[int, None] = {}
    for group in groups:
        for token_id in [group] if isinstance(group, int) else group or []:
            ids.setdefault(token_id)
    return tuple(ids)
