"""The settings of engine and sidecar, as docs/processes.md names them."""

from typing import Any, Final

from paceline_api.engine_spec import DynamicSpec, EngineSpec, WeightsIn
from paceline_api.inference_service import InferenceService
from paceline_api.units import amount, seconds

# Where the two containers see the volumes of a pod.
RUN: Final = "/run/paceline"
CACHE: Final = "/cache"
MODEL: Final = "/model"
DRAFT_MODEL: Final = "/draft-model"
RUNTIME_CONFIG: Final = "/etc/paceline/runtime"
RUNTIME_TOKEN: Final = "/etc/paceline/token"  # noqa: S105 - a folder
API_KEYS: Final = "/etc/paceline/api-keys"
TLS: Final = "/etc/paceline/tls"
BATCHES: Final = "/var/lib/paceline/batches"
# Ranks are processes of one container: nothing outside it can reach where they meet.
_WORDS: Final[dict[WeightsIn, str]] = {"AsStored": "as_stored", "FP8Dynamic": "fp8_dynamic"}
_RANKS_MEET: Final = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def engine(service: InferenceService) -> list[dict[str, Any]]:
    """Name what the engine loads and with what capacity. Limits are hot: they are not here."""
    spec = service.spec
    values = {
        "PACELINE_ENGINE_RUN_DIR": RUN,
        "PACELINE_ENGINE_MODEL_URI": spec.model.uri,
        "PACELINE_ENGINE_MODEL_REVISION": spec.model.revision,
        "PACELINE_ENGINE_MODEL_MOUNT": MODEL,
        "PACELINE_ENGINE_CACHE_DIR": CACHE,
        "PACELINE_ENGINE_DEVICE": "cuda" if spec.resources.gpu.count else "cpu",
        "PACELINE_ENGINE_DTYPE": spec.engine.dtype.lower(),
        "PACELINE_ENGINE_QUANTIZATION": (
            None if spec.engine.quantization == "None" else _word(spec.engine.quantization)
        ),
        "PACELINE_ENGINE_CPUS": _cpus(service),
        "PACELINE_ENGINE_MAX_MODEL_LEN": spec.engine.max_model_len,
        "PACELINE_ENGINE_MAX_BATCH_SIZE": spec.engine.capacity.max_batch_size,
        "PACELINE_ENGINE_MAX_TOKEN_BUDGET": spec.engine.capacity.max_token_budget,
        "PACELINE_ENGINE_KV_CACHE_MEMORY_FRACTION": spec.engine.kv_cache_memory_fraction,
        "PACELINE_ENGINE_PREFIX_CACHING": str(spec.engine.prefix_caching).lower(),
        "PACELINE_ENGINE_SPECULATIVE": spec.engine.speculative.method.lower(),
        "PACELINE_ENGINE_SPECULATIVE_TOKENS": spec.engine.speculative.max_tokens,
        # The root file system is read-only; caches of the compilers go to the pod's own /tmp.
        "HOME": "/tmp",  # noqa: S108 - a volume of this pod
        **_chosen(spec.engine),
    }
    variables = _variables(values)
    if ref := spec.model.credentials_secret_ref:
        source = {"secretKeyRef": {"name": ref.name, "key": ref.key}}
        variables.append({"name": "HF_TOKEN", "valueFrom": source})
    return variables


def _chosen(engine: EngineSpec) -> dict[str, str | int | None]:
    """Name rare settings only where the spec has them, so that other pods keep their template."""
    found: dict[str, str | int | None] = {}
    if engine.tensor_parallel_size > 1:
        found |= {"PACELINE_ENGINE_TENSOR_PARALLEL_SIZE": engine.tensor_parallel_size}
        found |= _RANKS_MEET
    if engine.scheduling != "Continuous":
        found["PACELINE_ENGINE_SCHEDULING"] = engine.scheduling.lower()
    if (gathering := engine.dynamic) != DynamicSpec():
        found["PACELINE_ENGINE_DYNAMIC_MAX_WAIT_S"] = f"{seconds(gathering.max_wait):g}"
        found["PACELINE_ENGINE_DYNAMIC_BUCKETS"] = str(gathering.buckets).lower()
    if engine.kv_cache_memory is not None:
        found["PACELINE_ENGINE_KV_CACHE_BYTES"] = int(amount(engine.kv_cache_memory))
    if engine.kv_cache_dtype != "Auto":
        found["PACELINE_ENGINE_KV_CACHE_DTYPE"] = engine.kv_cache_dtype.lower()
    if engine.speculative.method == "Draft":
        found["PACELINE_ENGINE_DRAFT_MODEL_URI"] = engine.speculative.draft_model_uri
        found["PACELINE_ENGINE_DRAFT_MODEL_REVISION"] = engine.speculative.draft_model_revision
        found["PACELINE_ENGINE_DRAFT_MODEL_MOUNT"] = DRAFT_MODEL
        if quantization := engine.speculative.draft_quantization:
            found["PACELINE_ENGINE_DRAFT_QUANTIZATION"] = _word(quantization)
    if engine.lora.max_adapters:
        found["PACELINE_ENGINE_MAX_LORAS"] = engine.lora.max_adapters
        found["PACELINE_ENGINE_MAX_LORA_RANK"] = engine.lora.max_rank
    if engine.swap_memory is not None:
        found["PACELINE_ENGINE_SWAP_BYTES"] = int(amount(engine.swap_memory))
    return found


def sidecar(service: InferenceService) -> list[dict[str, Any]]:
    """Name the sidecar's ports and files."""
    spec = service.spec
    has_keys = spec.api.auth is not None and spec.api.auth.api_keys_secret_ref is not None
    return _variables(
        {
            "PACELINE_SIDECAR_RUN_DIR": RUN,
            "PACELINE_SIDECAR_PORT": 8000,
            "PACELINE_SIDECAR_ADMIN_PORT": 8001,
            "PACELINE_SIDECAR_SERVED_NAME": service.served_name,
            "PACELINE_SIDECAR_RUNTIME_TOKEN_FILE": f"{RUNTIME_TOKEN}/token",
            "PACELINE_SIDECAR_RUNTIME_CONFIG_FILE": f"{RUNTIME_CONFIG}/runtime.json",
            "PACELINE_SIDECAR_API_KEYS_FILE": f"{API_KEYS}/keys" if has_keys else None,
            "PACELINE_SIDECAR_TLS_CERT_FILE": f"{TLS}/tls.crt" if spec.api.tls else None,
            "PACELINE_SIDECAR_TLS_KEY_FILE": f"{TLS}/tls.key" if spec.api.tls else None,
            "PACELINE_SIDECAR_ADMIN_TLS": "true" if service.admin_tls else None,
            "PACELINE_SIDECAR_BATCH_DIR": BATCHES if spec.api.batches else None,
            "PACELINE_SIDECAR_DOCS": None if spec.api.docs else "false",
            "PACELINE_SIDECAR_DRAIN_S": spec.rollout.drain_seconds,
        }
    )


def _variables(values: dict[str, str | int | None]) -> list[dict[str, Any]]:
    return [
        {"name": name, "value": str(value)} for name, value in values.items() if value is not None
    ]


def _word(quantization: WeightsIn) -> str:
    """Write a quantization as the engine's settings call it."""
    return _WORDS.get(quantization, quantization.lower())


def _cpus(service: InferenceService) -> str | None:
    """Tell how many CPUs were asked for; the engine sees its cores and chooses its threads."""
    cpus = amount(service.spec.resources.cpu or 0)
    return f"{cpus:g}" if cpus and not service.spec.resources.gpu.count else None
