"""Where the command line keeps files, and the environment of its two children. Pure."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from paceline_api.inference_service import InferenceService
from paceline_api.pod import environment as render
from paceline_api.policy_spec import Tuning
from paceline_engine.hardware.cores import choose_cores
from paceline_engine.hardware.cores_reader import read_share

Environment = dict[str, str]

_OF_THE_CONTAINER: Final = {
    "GLOO_SOCKET_IFNAME",
    "HOME",
    "NCCL_SOCKET_IFNAME",
    "PACELINE_ENGINE_CPUS",
    "PACELINE_ENGINE_DRAFT_MODEL_MOUNT",
    "PACELINE_ENGINE_MODEL_MOUNT",
    "PACELINE_SIDECAR_ADMIN_TLS",
    "PACELINE_SIDECAR_API_KEYS_FILE",
    "PACELINE_SIDECAR_BATCH_DIR",
    "PACELINE_SIDECAR_TLS_CERT_FILE",
    "PACELINE_SIDECAR_TLS_KEY_FILE",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Files and ports of one local service."""

    run_dir: Path
    """Sockets and the token: short, a unix socket's path holds 107 characters at most."""
    host: str
    port: int
    admin_port: int

    @property
    def url(self) -> str:
        """The OpenAI API, without `/v1`."""
        return f"http://{self.host}:{self.port}"

    @property
    def admin_url(self) -> str:
        """The runtime API."""
        return f"http://{self.host}:{self.admin_port}"

    @property
    def token_file(self) -> Path:
        """Bearer token of the runtime API."""
        return self.run_dir / "token"

    @property
    def runtime_config_file(self) -> Path:
        """Hot configuration for a child that starts again."""
        return self.run_dir / "runtime.json"

    @property
    def termination_log(self) -> Path:
        """Where the engine says why it gave up."""
        return self.run_dir / "termination.json"


def state_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of running services' state files and logs."""
    base = environment.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(base) / "paceline"


def memory_file(environment: Mapping[str, str] = os.environ) -> Path:
    """What the tuner has learned on this machine; beside the state files, not among them."""
    return state_dir(environment) / "tuner" / "memory.json"


def cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of downloaded models."""
    base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "paceline"


def engine_threads(given: int) -> int:
    """Leave one of the cores that were given: sidecar, tuner and clients run here too.

    A step has hundreds of parallel regions, and each waits for its slowest thread: on 2 busy
    cores one decode step took 2 to 3 s with 2 threads, and 0.2 s with 1.
    """
    return max(1, given - 1)


def engine_environment(service: InferenceService, place: Place, cache: Path) -> Environment:
    """The container's environment, with this machine's paths, device and cores."""
    spec = service.spec
    ranks = spec.engine.tensor_parallel_size
    here = {
        "PACELINE_ENGINE_RUN_DIR": str(place.run_dir),
        "PACELINE_ENGINE_CACHE_DIR": str(cache),
        "PACELINE_ENGINE_TERMINATION_LOG": str(place.termination_log),
        # A manifest that wants a GPU is served on the CPU where there is none.
        "PACELINE_ENGINE_DEVICE": "auto" if spec.resources.gpu.count else "cpu",
        "PACELINE_ENGINE_THREADS": str(
            max(1, engine_threads(choose_cores(read_share()).threads) // ranks)
        ),
    }
    return _rendered(render.engine(service)) | here | _initial_limits(spec.tuning)


def sidecar_environment(service: InferenceService, place: Place, drain_s: float) -> Environment:
    """The container's environment, with this machine's paths and ports."""
    here = {
        "PACELINE_SIDECAR_RUN_DIR": str(place.run_dir),
        "PACELINE_SIDECAR_HOST": place.host,
        "PACELINE_SIDECAR_PORT": str(place.port),
        "PACELINE_SIDECAR_ADMIN_PORT": str(place.admin_port),
        "PACELINE_SIDECAR_RUNTIME_TOKEN_FILE": str(place.token_file),
        "PACELINE_SIDECAR_RUNTIME_CONFIG_FILE": str(place.runtime_config_file),
        "PACELINE_SIDECAR_DRAIN_S": f"{drain_s:g}",
        "PACELINE_SIDECAR_LAME_DUCK_S": "0",  # no proxy has to hear of it
        # The engine has the cores; the tokenizer needs no pool of threads.
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return _rendered(render.sidecar(service)) | here


def _rendered(variables: list[dict[str, Any]]) -> Environment:
    """What the cluster would set, without what only a container has."""
    return {
        variable["name"]: variable["value"]
        for variable in variables
        if "value" in variable and variable["name"] not in _OF_THE_CONTAINER
    }


def _initial_limits(tuning: Tuning) -> Environment:
    batch, budget = tuning.batch_size, tuning.token_budget
    limits = {
        "PACELINE_ENGINE_INITIAL_BATCH_SIZE": batch.max if batch.initial is None else batch.initial,
        "PACELINE_ENGINE_INITIAL_TOKEN_BUDGET": (
            budget.max if budget.initial is None else budget.initial
        ),
    }
    return {name: str(value) for name, value in limits.items() if value is not None}
