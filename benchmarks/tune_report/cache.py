"""Results on disk, keyed by what made them: a repeated run computes only what changed."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BENCHMARKS = ROOT / "benchmarks"
_SIMULATOR = (
    *sorted((ROOT / "sim" / "paceline_sim").glob("*.py")),
    *sorted((ROOT / "engine" / "paceline_engine" / "scheduling").glob("*.py")),
    ROOT / "engine" / "paceline_engine" / "engine" / "control.py",
    ROOT / "engine" / "paceline_wire" / "limits.py",
    *(
        _BENCHMARKS / "tune_report" / f"{name}.py"
        for name in (
            "arrivals",
            "control_score",
            "episode",
            "mixes",
            "score",
            "settings",
            "traces",
            "workloads",
        )
    ),
)
_RULES = sorted((_BENCHMARKS / "tune_report" / "arms").glob("*.py"))
_SCHEDULE = tuple(_BENCHMARKS / "tune_report" / f"{name}.py" for name in ("oracle", "schedule"))
_FINDINGS = (_BENCHMARKS / "tune_report" / "long_findings.py",)
_PRODUCT = (
    *sorted((ROOT / "operator" / "paceline_tuner").rglob("*.py")),
    *sorted((ROOT / "engine" / "paceline_engine" / "pacing").glob("*.py")),
)


class Code:
    """The sources that results depend on, as they were when the run began."""

    def __init__(self) -> None:
        """Read the sources once: they may be edited while a long run lasts."""
        self.engine = _digest(_SIMULATOR)
        self.schedule = _digest((*_SIMULATOR, *_SCHEDULE))
        self.rules = _digest((*_SIMULATOR, *_RULES))
        self.product = _digest((*_SIMULATOR, *_RULES, *_PRODUCT))
        self.findings = _digest((*_SIMULATOR, *_RULES, *_PRODUCT, *_FINDINGS))


class Cache:
    """A folder of JSON files."""

    def __init__(self, folder: Path) -> None:
        """Keep results in `folder`."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> object | None:
        """Return the stored result, or None."""
        path = self._folder / f"{key}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def put(self, key: str, value: object) -> None:
        """Store, whole or not at all."""
        path = self._folder / f"{key}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(value))
        part.replace(path)


def key_of(code: str, *parts: object) -> str:
    """One name for code and arguments."""
    return hashlib.sha256(repr((code, *parts)).encode()).hexdigest()[:32]


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
