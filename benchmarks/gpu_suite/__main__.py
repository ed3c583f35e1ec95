"""Measure kernels and engine on this machine's GPU, beside what is wanted.

    make gpu                   every part
    make gpu PART=engine       one, merged into what the others found
    make gpu PART=tune         block sizes for this GPU: only where it is asked for
    make gpu PYTHON=python3    with what that interpreter has: nothing is installed
    make gpu MODEL=qwen3-0.6b  of the parts that run models, this one
    make gpu GO_ON=1           only what the record of an earlier run does not have
    make gpu RESULTS=FOLDER    write there, and merge into what lies there
    VLLM_PYTHON=ENV/bin/python make gpu PART=vllm    beside vLLM, of an environment of its own
    make gpu DRY=1             every path on tiny shapes without a GPU; no figure means anything

Each part runs in a process of its own, which is ended when its minutes are over, and begun again
where a kernel took the device down. What is found is written after each figure to
`benchmarks/results/<GPU>/gpu.json` and `gpu.md`, and `tuned.txt` where block sizes were found
that are better. Exits with 1 where a part is not whole. docs/gpu.md says more.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path

if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from gpu_suite import child, names, page, predicted, results
from gpu_suite.machine import Machine
from gpu_suite.parts import LOST, ONLY_IF_ASKED_FOR, PARTS, UNFINISHED, measure_of, run_part
from gpu_suite.record import Part, merged
from paceline_kernels.checks import MIN_CAPABILITY

_NEEDED = {"msgspec": "msgspec", "pydantic_settings": "pydantic-settings"}
"""Packages that the engine needs beside torch and transformers, by module."""
_BEGUN_AGAIN = 4
"""Times at most, after a device was lost."""
_SOFT = 0.9
"""Share of a part's time after which no figure is begun."""


def main() -> None:
    """Run the parts one after the other, or as a child the one that is asked for."""
    options = _options()
    models = frozenset(options.model or names.MODELS)
    machine = Machine(is_dry=options.dry, models=models)
    if options.inside:
        _measure_inside(options, machine)
        return
    if problem := _missing() or _unfit(machine):
        sys.exit(problem)
    folder = Path(tempfile.mkdtemp()) if machine.is_dry else results.FOLDER / machine.slug
    folder = (options.results or folder).resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and no child stays behind
    usual = [name for name in PARTS if machine.is_dry or name != ONLY_IF_ASKED_FOR]
    run = [options.part] if options.part else usual
    is_predicted = options.go_on and bool(predicted.read(folder))
    if "engine" in run and not machine.is_dry and not is_predicted:
        predicted.predict(machine.name, folder)
    for name in run:
        _supervise(name, folder, machine, 60 * options.minutes, goes_on=options.go_on)
    record = results.read(folder, is_dry=machine.is_dry)
    predictions = () if machine.is_dry else predicted.read(folder)
    print(page.page_of(record, predictions, is_dry=machine.is_dry))
    print(f"Written to {folder}.")
    sys.exit(0 if all(record.parts[name].is_whole for name in run) else 1)


def _supervise(name: str, folder: Path, machine: Machine, limit_s: float, *, goes_on: bool) -> None:
    """Have a child measure a part, again where it lost the device; see that it ends in time."""
    is_dry = machine.is_dry
    record = results.read(folder, is_dry=is_dry)
    before = record.parts.get(name) if goes_on else None
    before = before and replace(before, broken=())  # what broke is tried again
    # Unless it goes on, no figure of an earlier run stays.
    unfinished = replace(before or Part(name, {}, 0.0), problems=(UNFINISHED,))
    results.write(folder, merged(record, [unfinished]), is_dry=is_dry)
    started = time.monotonic()
    for again in range(1 + _BEGUN_AGAIN):
        left_s = limit_s - (time.monotonic() - started)
        arguments = ["--inside", "--part", name, "--results", str(folder)]
        arguments += ["--minutes", str(_SOFT * left_s / 60)]
        arguments += [f"--model={model}" for model in machine.models]
        arguments += ["--dry"] * is_dry + ["--again"] * (again > 0 or before is not None)
        ended = child.run([sys.executable, "-m", "gpu_suite", *arguments], left_s)
        record = results.read(folder, is_dry=is_dry)
        part = record.parts[name]
        if ended:
            known = [problem for problem in part.problems if problem != UNFINISHED]
            part = replace(part, problems=(*known, ended))
            results.write(folder, merged(record, [part]), is_dry=is_dry)
        if LOST not in part.problems:
            return


def _measure_inside(options: argparse.Namespace, machine: Machine) -> None:
    """Measure one part in this process, and keep what there is after each figure."""
    deadline = time.monotonic() + 60 * options.minutes
    if machine.is_dry:
        torch.set_num_threads(1)
    record = results.read(options.results, is_dry=machine.is_dry)
    before = record.parts[options.part] if options.again else None
    if before is not None:
        machine = replace(
            machine,
            passed=frozenset(one.name for one in before.found),
            broken=frozenset(one.name for one in before.broken),
        )

    def keep(part: Part) -> None:
        results.write(options.results, merged(record, [part]), is_dry=machine.is_dry)

    keep(
        run_part(
            options.part,
            measure_of(options.part),
            machine,
            deadline,
            clock=time.monotonic,
            keep=keep,
            before=before,
        )
    )


def _missing() -> str:
    """Say in a sentence which packages of the engine's are not installed; empty where all are."""
    names = []
    for module, name in _NEEDED.items():
        try:
            import_module(module)
        except ModuleNotFoundError:
            names.append(name)
    if not names:
        return ""
    return (
        f"This needs {' and '.join(names)}, which {sys.executable} does not have: "
        "docs/gpu.md says how to bring the wheels to a machine without a network."
    )


def _unfit(machine: Machine) -> str:
    """Say in a sentence why nothing can be measured here; empty where it can."""
    if machine.is_dry:
        return ""
    if not torch.cuda.is_available():
        return "This measures a GPU, and torch sees none. Try --dry."
    capability = torch.cuda.get_device_capability()
    if capability < MIN_CAPABILITY:
        needed, got = (f"{major}.{minor}" for major, minor in (MIN_CAPABILITY, capability))
        return (
            f"The kernels need a GPU of compute capability {needed} or newer, "
            f"got {got} ({machine.name})."
        )
    return ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", choices=PARTS, help="this alone")
    parser.add_argument("--model", choices=names.MODELS, action="append", help="of models, this")
    parser.add_argument("--go-on", action="store_true", help="measure what the record lacks")
    parser.add_argument("--dry", action="store_true", help="tiny shapes, no GPU")
    parser.add_argument("--minutes", type=float, default=8.0, help="for each part, at most")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="write there")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--again", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
