"""A real engine process, and a sidecar in front of it: all that a pod runs."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline_testing.running_sidecar import Sidecar, start_sidecar
from paceline_testing.tiny_model import make_tiny_model
from paceline_testing.waiting import wait_until

_START_S = 120.0
_EMBEDDED_START_S = 300.0
NO_SETTINGS: Mapping[str, str] = {}


@contextmanager
def whole_service(
    model_folder: Path, *, engine_settings: Mapping[str, str] = NO_SETTINGS, **sidecar_settings: Any
) -> Iterator[tuple[Sidecar, Any]]:
    """Serve a tiny Llama; the sidecar, and the same model as transformers runs it."""
    model_folder.mkdir(exist_ok=True)
    reference = make_tiny_model(model_folder, "llama")
    settings = {
        "PACELINE_ENGINE_MODEL_URI": f"file://{model_folder}",
        "PACELINE_ENGINE_DTYPE": "float32",
        "PACELINE_ENGINE_THREADS": "1",
        "PACELINE_ENGINE_MAX_BATCH_SIZE": "16",
        "PACELINE_ENGINE_BLOCK_SIZE": "4",
        "PACELINE_ENGINE_KV_CACHE_BYTES": str(4 * 1024 * 1024),
        **engine_settings,
    }
    with _served(settings, _START_S, served_name="tiny", **sidecar_settings) as sidecar:
        yield sidecar, reference


@contextmanager
def embedded_service(
    engine_settings: Mapping[str, str] = NO_SETTINGS, **sidecar_settings: Any
) -> Iterator[Sidecar]:
    """Serve the embedded model, which answers in sentences; in float32, as every CPU has it."""
    settings = {
        "PACELINE_ENGINE_MODEL_URI": "builtin://smollm2-135m-instruct",
        "PACELINE_ENGINE_DTYPE": "float32",
        **engine_settings,
    }
    with _served(settings, _EMBEDDED_START_S, **sidecar_settings) as sidecar:
        yield sidecar


@contextmanager
def _served(
    engine_settings: Mapping[str, str], start_s: float, **sidecar_settings: Any
) -> Iterator[Sidecar]:
    run_dir = Path(tempfile.mkdtemp(prefix="pl-"))  # short: a socket's path may have 107 bytes
    engine = subprocess.Popen(
        [sys.executable, "-m", "paceline_engine"],
        env={
            **os.environ,
            "PACELINE_ENGINE_RUN_DIR": str(run_dir),
            "PACELINE_ENGINE_DEVICE": "cpu",
            "PACELINE_ENGINE_TERMINATION_LOG": str(run_dir / "termination-log"),
            **engine_settings,
        },
    )
    sidecar = start_sidecar(run_dir, **sidecar_settings)
    try:
        wait_until(lambda: sidecar.ready() or engine.poll() is not None, within_s=start_s)
        assert engine.poll() is None, "the engine did not start"
        yield sidecar
    finally:
        sidecar.leave()
        try:
            sidecar.join()
        finally:
            engine.kill()
            engine.wait()
            shutil.rmtree(run_dir)
