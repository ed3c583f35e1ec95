"""Measure kernels and engine on this machine's GPU, beside what is wanted.

    make gpu                   every part
    make gpu PART=engine       one, merged into what the others found
    make gpu PART=tune         block sizes for this GPU: only where it is asked for
    VLLM_PYTHON=ENV/bin/python make gpu PART=vllm    beside vLLM, of an environment of its own
    make gpu DRY=1             every path on tiny shapes without a GPU; no figure means anything

Writes `benchmarks/results/<GPU>/gpu.json` and `gpu.md`, and `tuned.jsonl` where block sizes were
found that are better. Exits with 1 where a part is not whole.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from gpu_suite import page
from gpu_suite.machine import Machine
from gpu_suite.record import Absent, Figure, Part, Record, from_json, merged, to_json

# By name: each is imported when it runs, and the kernels need neither engine nor transformers.
PARTS = {
    "correctness": "correctness",
    "kernels": "kernel_times",
    "parity": "parity",
    "limits": "limits_under_load",
    "engine": "engine_times",
    "peer": "peer",
    "vllm": "vllm_peer",
    "tune": "tuning",
}
_ONLY_IF_ASKED_FOR = "tune"
"""A search of many minutes, whose rows serve once they are committed."""
RESULTS = Path(__file__).parents[1] / "results"


Measure = Callable[[Machine], Iterator[Figure | Absent]]


def main() -> None:
    """Run the parts one after the other; what is found is written after each."""
    options = _options()
    machine = Machine(is_dry=options.dry)
    if not machine.is_dry and not torch.cuda.is_available():
        sys.exit("This measures a GPU, and torch sees none. Try --dry.")
    if machine.is_dry:
        torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp()) if machine.is_dry else RESULTS / machine.slug
    folder = options.results or folder
    record = _read(folder / "gpu.json", is_dry=machine.is_dry)
    deadline = time.monotonic() + 60 * options.minutes
    usual = [name for name in PARTS if machine.is_dry or name != _ONLY_IF_ASKED_FOR]
    for name in [options.part] if options.part else usual:
        part = run_part(name, _measure_of(name), machine, deadline, clock=time.monotonic)
        record = merged(record, [part])
        _write(folder, record, is_dry=machine.is_dry)
    print(page.page_of(record, is_dry=machine.is_dry))
    print(f"Written to {folder}.")
    sys.exit(1 if any(part.problems for part in record.parts.values()) else 0)


def run_part(
    name: str,
    measure: Measure,
    machine: Machine,
    deadline: float,
    *,
    clock: Callable[[], float],
) -> Part:
    """Take figures until there are no more or time is up; keep them whatever happens then."""
    started = clock()
    figures: list[Figure] = []
    absent: list[Absent] = []
    problems: list[str] = []
    try:
        for figure in measure(machine):
            if isinstance(figure, Absent):
                absent.append(figure)
                print(f"{name}: {figure.name}: {figure.why}", flush=True)
                continue
            figures.append(figure)
            print(f"{name}: {figure.name}: {page.shown(figure.value, figure.unit)}", flush=True)
            if clock() > deadline:
                problems.append(
                    "time was up: what would have followed was not run; run this part alone"
                )
                break
    except Exception as error:  # noqa: BLE001 - the other parts are still worth measuring
        traceback.print_exc()
        problems.append(f"{type(error).__name__}: {error}")
    seconds = clock() - started
    return Part(name, machine.described(), seconds, tuple(figures), tuple(problems), tuple(absent))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", choices=PARTS, help="this alone")
    parser.add_argument("--dry", action="store_true", help="tiny shapes, no GPU")
    parser.add_argument("--minutes", type=float, default=30.0, help="no figure is begun after")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="write there")
    return parser.parse_args()


def _measure_of(name: str) -> Measure:
    def measure(machine: Machine) -> Iterator[Figure]:
        return import_module(f"gpu_suite.{PARTS[name]}").measure(machine)  # type: ignore[no-any-return] # each part has one

    return measure


def _read(path: Path, *, is_dry: bool) -> Record:
    """What earlier parts found; a dry run's figures never stand beside a GPU's."""
    found = json.loads(path.read_text()) if path.exists() else {}
    return from_json(found) if found.get("dry_run") == is_dry else Record()


def _write(folder: Path, record: Record, *, is_dry: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found = {"dry_run": is_dry, **to_json(record)}
    (folder / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / "gpu.md").write_text(page.page_of(record, is_dry=is_dry))
    if record.rows:
        (folder / "tuned.jsonl").write_text("".join(f"{row}\n" for row in record.rows))


if __name__ == "__main__":
    main()
