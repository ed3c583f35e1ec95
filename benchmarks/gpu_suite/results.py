"""Where a record lies: JSON for programs, a page for people, and rows for the table of blocks."""

import json
from pathlib import Path

from gpu_suite import page, predicted
from gpu_suite.record import Record, from_json, to_json

FOLDER = Path(__file__).parents[1] / "results"


def read(folder: Path, *, is_dry: bool) -> Record:
    """What earlier parts found; a dry run's figures never stand beside a GPU's."""
    path = folder / "gpu.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    return from_json(found) if found.get("dry_run") == is_dry else Record()


def write(folder: Path, record: Record, *, is_dry: bool) -> None:
    """Write each file whole or not at all: the process may be ended at any time."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {"dry_run": is_dry, **to_json(record)}
    _replace(folder / "gpu.json", json.dumps(found, indent=1) + "\n")
    predictions = () if is_dry else predicted.read(folder)
    _replace(folder / "gpu.md", page.page_of(record, predictions, is_dry=is_dry))
    if record.rows:
        _replace(folder / "tuned.txt", "".join(f"{row}\n" for row in record.rows))


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)
