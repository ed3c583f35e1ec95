"""The real engine and its sidecar on loopback, as `paceline up` starts them, without a tuner."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from paceline_cli import local_state as state
from paceline_cli.up.child import kept_running
from paceline_cli.up.live import LiveService
from paceline_cli.up.serving import follow_health, prepare, programs

BATCH, BUDGET, MODEL_LEN = 32, 1024, 2048
"""What the engine allocates."""
_START_S = 120.0
_MANIFEST = {
    "apiVersion": "serving.paceline.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "sim-to-real"},
    "spec": {
        "model": {"uri": "builtin://smollm2-135m-instruct"},
        "engine": {
            "maxModelLen": MODEL_LEN,
            "capacity": {"maxBatchSize": BATCH, "maxTokenBudget": BUDGET},
            "prefixCaching": False,  # prompts of one text would share blocks by chance
        },
        "sla": {"ttft": {"p99": "60s"}, "itl": {"p99": "30s"}},  # judged here, not by the sidecar
        "admission": {"shedHopeless": False},  # both engines serve all that arrives
        "resources": {"gpu": {"count": 0}, "cpu": "1", "memory": "3Gi"},
    },
}


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[LiveService]:
    """Serve the embedded model inside the block. Raises StartError, TimeoutError."""
    live = prepare(_manifest(folder), port=None, folder=folder)
    engine, sidecar = programs(live, folder)
    try:
        async with (
            kept_running(engine, live.exited),
            kept_running(sidecar, live.exited),  # left first: it drains while the engine runs
            asyncio.TaskGroup() as group,
        ):
            health = group.create_task(follow_health(live))
            async with asyncio.timeout(_START_S):
                await live.ready.wait()
            yield live
            health.cancel()
    finally:
        state.remove(folder, live.name)
        shutil.rmtree(live.place.run_dir, ignore_errors=True)


def _manifest(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / "service.yaml"
    manifest.write_text(yaml.safe_dump(_MANIFEST), encoding="utf-8")
    return manifest
