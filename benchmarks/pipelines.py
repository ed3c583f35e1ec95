"""What the example pipelines cost on this machine: the three scripts of `examples/pipelines`.

    PYTHONPATH=tests python benchmarks/pipelines.py retrieve|cascade|offline

`retrieve` sends questions at a fixed rate through three tuned services (`retrieve_steps.py`);
`cascade` asks a small model, one of three times its layers, and both in turn through a gateway
(`cascade_arms.py`), which it builds once; `offline` has files of requests beside people
(`offline_file.py`). Each keeps its figures in `results/cpu/pipelines.json`, and writes its own
section of the page beside it.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cascade_arms import cascade, cascade_section
from offline_file import offline, offline_section
from paceline_cli.traffic.calibration import machine
from retrieve_steps import retrieve, retrieve_section

EXAMPLES = Path(__file__).parents[1] / "examples" / "pipelines"
RESULTS = Path(__file__).parent / "results" / "cpu"
HEAD = "# Pipelines on a CPU\n\nMade by `benchmarks/pipelines.py`.\n\n"
RATES = {"retrieve": 0.5, "offline": 2.0}


def main() -> None:
    """Measure one pipeline, keep its figures, and write its section of the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pipeline", choices=("retrieve", "cascade", "offline"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--requests", type=int, default=408, help="Questions, of each arm; of people, at least."
    )
    parser.add_argument(
        "--rate", type=float, help=f"Questions or people's requests a second; otherwise {RATES}."
    )
    parser.add_argument("--lines", type=int, default=3000, help="Of each file of offline.")
    given = parser.parse_args()
    sys.path.insert(0, str(EXAMPLES))
    rate_rps = given.rate or RATES.get(given.pipeline, 0.0)
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "retrieve": lambda: retrieve(given.requests, rate_rps),
        "cascade": lambda: cascade(given.requests),
        "offline": lambda: offline(given.lines, rate_rps, given.requests),
    }
    path, page = given.results / "pipelines.json", given.results / "pipelines.md"
    kept = json.loads(path.read_text()) if path.exists() else {}
    found = {"machine": machine(), **measures[given.pipeline]()}
    if given.pipeline == "offline":  # one beside the other: what a file costs goes by the rate
        kept.setdefault("offline", {})[f"{rate_rps:g}"] = found
    else:
        kept[given.pipeline] = found
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    section = section_of(given.pipeline, kept)
    page.write_text(with_section(page.read_text() if page.exists() else "", section))
    print(section)


def section_of(pipeline: str, kept: dict[str, Any]) -> str:
    """Write what was measured of one pipeline, for a reader."""
    written: dict[str, Callable[[Any], str]] = {
        "retrieve": retrieve_section,
        "cascade": cascade_section,
        "offline": offline_section,
    }
    return written[pipeline](kept[pipeline])


def with_section(page: str, section: str) -> str:
    """Put a section in the place of that of its title, or at the end; others stay as they are."""
    sections = re.findall(r"^## .*?(?=^## |^Made by|\Z)", page, re.MULTILINE | re.DOTALL)
    titles = [title(each) for each in sections]
    place = titles.index(title(section)) if title(section) in titles else len(titles)
    sections[place : place + 1] = [section]
    return HEAD + "\n".join(f"{each.rstrip()}\n" for each in sections)


def title(section: str) -> str:
    """Return its first line."""
    return section.partition("\n")[0]


if __name__ == "__main__":
    main()
