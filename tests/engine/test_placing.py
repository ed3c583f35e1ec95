"""Threads lie where they were placed: of torch's products, of the compiled ones, and of helpers."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from paceline_engine.hardware.cores import CoreUse
from paceline_engine.hardware.placing import placed

CPUS = tuple(sorted(os.sched_getaffinity(0)))
PINS = CPUS[:2]

_PLACED = """
import json, os, re, sys, threading
from pathlib import Path
from paceline_engine.hardware.cores import CoreUse
from paceline_engine.hardware.placing import leave_core, leave_core_for_places, place

cpus, pins = json.loads(sys.argv[1])
place(CoreUse(len(pins), "", tuple(cpus), tuple(pins)))
import torch
from paceline_kernels.cpu import native_ops

def allowed():
    texts = [path.read_text() for path in Path("/proc/self/task").glob("*/status")]
    return {
        int(re.search(r"Pid:\\t(\\d+)", text)[1]): re.search(r"Cpus_allowed_list:\\t(.*)", text)[1]
        for text in texts
    }

torch.set_num_threads(len(pins))
before = set(allowed())
torch.randn(600, 600) @ torch.randn(600, 600)
by_torch = {tid: where for tid, where in allowed().items() if tid not in before}
if (native := native_ops()) is not None:
    native.matmul(torch.randn(64, 1024), native.matmul.pack(torch.randn(1024, 1024)))
by_both = {tid: where for tid, where in allowed().items() if tid not in before}
free = []
helper = threading.Thread(target=lambda: (leave_core(), free.append(os.sched_getaffinity(0))))
helper.start()
helper.join()
near = []
helper = threading.Thread(
    target=lambda: (leave_core_for_places(), near.append(os.sched_getaffinity(0)))
)
helper.start()
helper.join()
print(json.dumps([allowed()[os.getpid()], [*by_torch.values()], [*by_both.values()],
                  sorted(free[0]), sorted(near[0])]))
"""


def _run(pins: tuple[int, ...]) -> Any:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    ended = subprocess.run(
        [sys.executable, "-c", _PLACED, json.dumps([CPUS, pins])],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ended.stdout)


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU has nothing to choose")
def test_every_thread_of_a_product_has_a_core() -> None:
    """The first is the step loop's; torch's team and that of the compiled ops are one."""
    own, by_torch, by_both, *_ = _run(PINS)

    assert own == str(PINS[0])
    assert by_torch == [str(PINS[1])]
    assert by_both == by_torch


def test_a_helpers_thread_leaves_the_core_of_the_step_loop() -> None:
    """Else it would compile a grammar where every step needs the time."""
    *_, free, _ = _run(PINS[:1])

    assert set(CPUS) <= set(free)


def test_threads_on_shared_cores_sleep_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that spins keeps the core from the thread that it waits for; on its own it may."""
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    ask = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"

    with placed(CoreUse(2, "", CPUS)):
        shared = subprocess.check_output([sys.executable, "-c", ask], text=True)
    with placed(CoreUse(1, "", CPUS, CPUS[-1:])):
        own = subprocess.check_output([sys.executable, "-c", ask], text=True)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    with placed(CoreUse(2, "", CPUS)):
        chosen = subprocess.check_output([sys.executable, "-c", ask], text=True)

    assert [each.strip() for each in (shared, own, chosen)] == ["1000", "None", "7"]
    assert os.environ["GOMP_SPINCOUNT"] == "7"


def test_processes_are_placed_and_this_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank starts on its own cores, whatever those of the rank that starts it."""
    monkeypatch.setenv("OMP_PLACES", "{0}")
    monkeypatch.delenv("OMP_PROC_BIND", raising=False)
    ask = "import os; print(os.sched_getaffinity(0), os.environ.get('OMP_PLACES'))"

    with placed(CoreUse(1, "", CPUS[-1:])):
        unpinned = subprocess.check_output([sys.executable, "-c", ask], text=True)
    with placed(CoreUse(1, "", CPUS, CPUS[-1:])):
        pinned = subprocess.check_output([sys.executable, "-c", ask], text=True)

    assert unpinned.strip() == f"{set(CPUS[-1:])} None"
    assert pinned.strip() == f"{set(CPUS)} {{{CPUS[-1]}}}"
    assert os.sched_getaffinity(0) == set(CPUS)
    assert (os.environ["OMP_PLACES"], os.environ.get("OMP_PROC_BIND")) == ("{0}", None)


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU has nothing to choose")
def test_memory_is_touched_from_cores_of_this_process() -> None:
    """The kernel takes it from the node of that core."""
    *_, near = _run(PINS)

    assert near == sorted(PINS)
