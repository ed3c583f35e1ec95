"""Serves a manifest inside a block: children, health, the file for changes, and the tuner."""

import asyncio
import contextlib
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx

from paceline_api.tuning_spec import tuning_spec
from paceline_cli import local_state as state
from paceline_cli.manifest import load
from paceline_cli.place import Place, cache_dir, engine_environment, sidecar_environment
from paceline_cli.pod_client import HttpxPodClient
from paceline_cli.up.child import Program, kept_running, python_module
from paceline_cli.up.live import LiveService, StartError, write_runtime_config
from paceline_cli.up.loading import missing_words
from paceline_cli.up.warm_start_file import FileStore
from paceline_tuner.loop import TuningLoop
from paceline_tuner.pods import PodError

DRAIN_S = 5.0
_POLL_S = 0.5


@contextlib.asynccontextmanager
async def local_tuner(memory: Path | None = None) -> AsyncIterator[TuningLoop]:
    """Open a tuner with its own connections, which remembers in the file `memory`, if any."""
    store = FileStore(memory) if memory is not None else None
    async with HttpxPodClient() as pods:
        yield TuningLoop(pods, time.time, store)


@contextlib.asynccontextmanager
async def serving(
    path: Path,
    *,
    port: int | None,
    tuner: TuningLoop,
    folder: Path,
    engine_settings: Mapping[str, str] | None = None,
) -> AsyncIterator[LiveService]:
    """Serve the manifest inside the block. `ready` is set when requests are answered.

    `engine_settings`, environment variables, go before what the manifest says.
    """
    live = prepare(path, port=port, folder=folder)
    engine, sidecar = programs(live, folder, engine_settings)
    try:
        async with (
            kept_running(engine, live.exited),
            kept_running(sidecar, live.exited),  # left first: it drains while the engine runs
            asyncio.TaskGroup() as group,
        ):
            jobs = (follow_health(live), follow_file(live), tune(live, tuner, folder))
            tasks = [group.create_task(job) for job in jobs]
            if live.service.spec.api.auth or live.service.spec.api.tls:
                live.note("spec.api names Secrets of a cluster: served here without key and TLS")
            yield live
            for task in tasks:
                task.cancel()
    finally:
        state.remove(folder, live.name)
        shutil.rmtree(live.place.run_dir, ignore_errors=True)


def prepare(path: Path, *, port: int | None, folder: Path) -> LiveService:
    """Check the manifest, and make what its children need: run directory, ports, token."""
    service = load(path)
    folder.mkdir(parents=True, exist_ok=True)
    if twin := state.running(folder).get(service.metadata.name):
        raise StartError(f"{twin.name} already runs at {twin.url} (process {twin.pid})")
    ports = free_ports(port)
    place = Place(Path(tempfile.mkdtemp(prefix="paceline-")), "127.0.0.1", *ports)
    live = LiveService(path, service, place, token=secrets.token_urlsafe(32))
    place.token_file.touch(mode=0o600)
    place.token_file.write_text(live.token)
    write_runtime_config(live)
    state.write(folder, live.state())
    return live


def programs(
    live: LiveService, folder: Path, engine_settings: Mapping[str, str] | None = None
) -> tuple[Program, Program]:
    """Engine and sidecar, as their containers would run them."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    chosen = dict(engine_settings or {})
    engine = Program(
        name="engine",
        argv=python_module("paceline_engine"),
        environment=engine_environment(live.service, live.place, cache_dir()) | chosen,
        log=_fresh(folder / f"{live.name}.engine.log"),
        grace_s=DRAIN_S,
    )
    sidecar = Program(
        name="sidecar",
        argv=python_module("paceline_sidecar"),
        environment=sidecar_environment(live.service, live.place, DRAIN_S),
        log=_fresh(folder / f"{live.name}.sidecar.log"),
        grace_s=DRAIN_S + 5.0,
    )
    return engine, sidecar


async def follow_health(live: LiveService) -> None:
    """Ask the sidecar whether it serves, forever."""
    async with (
        httpx.AsyncClient(base_url=live.place.url, timeout=5.0) as client,
        HttpxPodClient() as pods,
    ):
        while True:
            was_ready = live.ready.is_set()
            try:
                response = await client.get("/health/ready")
            except httpx.HTTPError:
                if live.ready.is_set():
                    live.became(is_ready=False, phase="the sidecar does not answer")
            else:
                is_ready = response.status_code == httpx.codes.OK
                live.became(
                    is_ready=is_ready, phase="serving" if is_ready else missing_words(response.text)
                )
                if is_ready and not was_ready:
                    await ask_engine(live, pods)
            await asyncio.sleep(_POLL_S)


async def ask_engine(live: LiveService, pods: HttpxPodClient) -> None:
    """Ask an engine that has just got ready how it computes."""
    for pod in live.target.pods:
        with contextlib.suppress(PodError):  # it has just left: the next one is asked
            live.engine_said((await pods.get_telemetry(pod, 0)).info)


async def follow_file(live: LiveService) -> None:
    """Look at the manifest, forever, and act when its text has changed."""
    seen = _text(live.path)
    while True:
        await asyncio.sleep(_POLL_S)
        text = _text(live.path)
        if text not in {seen, ""}:  # an editor may have truncated it just now
            seen = text
            live.file_changed()


async def tune(live: LiveService, tuner: TuningLoop, folder: Path) -> None:
    """Run the tuner every `spec.tuning.interval`, forever."""
    while True:
        if live.ready.is_set():
            target = live.target
            report = await tuner.tick(target)
            newest = [tuner.explain(target.key, pod.name)[-1:] for pod in target.pods]
            live.concluded(report, [decision for decisions in newest for decision in decisions])
        state.write(folder, live.state())
        await asyncio.sleep(tuning_spec(live.service.spec).interval_s)


def free_ports(port: int | None) -> tuple[int, int]:
    """The wanted port or a free one, and a free one for the admin API."""
    with socket.socket() as public, socket.socket() as admin:
        public.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            public.bind(("127.0.0.1", port or 0))
        except OSError as problem:
            raise StartError(
                f"--port {port}: cannot listen on 127.0.0.1:{port}: {problem}"
            ) from problem
        admin.bind(("127.0.0.1", 0))
        return public.getsockname()[1], admin.getsockname()[1]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _fresh(log: Path) -> Path:
    log.write_bytes(b"")
    return log
