"""The InferenceService as a typed model."""

from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from paceline_api.adapter_spec import MAX_ADAPTERS, AdapterSpec
from paceline_api.device_claims import MAX_CLAIMS, PodClaim
from paceline_api.engine_spec import EngineSpec
from paceline_api.model_spec import ModelSpec
from paceline_api.part import OnChange, Part, Rule, listed
from paceline_api.placement import (
    Api,
    Disruption,
    Monitoring,
    NetworkSpec,
    PodMetadata,
    Resources,
    Rollout,
    Scheduling,
    SecretRef,
    SidecarSpec,
)
from paceline_api.pod_overrides import PodOverrides
from paceline_api.policy_spec import Tuning
from paceline_api.sla_spec import AdmissionSpec, Lanes, SlaSpec
from paceline_api.status import Status

GROUP: Final = "serving.paceline.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "InferenceService"
PLURAL: Final = "inferenceservices"


def _below_capacity(limit: str, capacity: str) -> Rule:
    bounds = f"self.tuning.{limit}"
    ceiling = f"self.engine.capacity.{capacity}"
    return Rule(
        f"{bounds}.min <= {ceiling} && (!has({bounds}.max) || {bounds}.max <= {ceiling}) &&"
        f" (!has({bounds}.initial) || {bounds}.initial <= {ceiling})",
        f"min, max and initial must not exceed engine.capacity.{capacity}",
        f".tuning.{limit}",
    )


class Spec(Part):
    """What is wanted. Each field says what a change of it does, for all that lies below it too."""

    cel_rules: ClassVar = (
        Rule(
            "self.tuning.mode != 'Auto' || has(self.sla)",
            "tuning.mode Auto needs at least one target: sla.ttft, sla.tpot, sla.itl or sla.e2e",
            ".sla",
            is_required=True,
        ),
        Rule(
            "!has(self.tuning.experiment) || has(self.sla)",
            "tuning.experiment compares misses of the SLA: declare sla.ttft, sla.tpot, sla.itl or"
            " sla.e2e",
            ".sla",
            is_required=True,
        ),
        Rule(
            "!has(self.sla) || !has(self.sla.e2e) ||"
            " duration(self.sla.e2e.p99) <= duration(self.admission.requestTimeout)",
            "must not exceed admission.requestTimeout: a request is ended by then",
            ".sla.e2e.p99",
        ),
        Rule(
            "!has(self.lanes.batch.sla) || !has(self.lanes.batch.sla.e2e) ||"
            " duration(self.lanes.batch.sla.e2e.p99) <= duration(self.admission.requestTimeout)",
            "must not exceed admission.requestTimeout: a request is ended by then",
            ".lanes.batch.sla.e2e.p99",
        ),
        Rule(
            "self.resources.gpu.count == 0 ||"
            " self.resources.gpu.count == self.engine.tensorParallelSize",
            "must be engine.tensorParallelSize, or 0 for a CPU: each rank runs on a GPU of its own,"
            " and no other is used",
            ".resources.gpu.count",
        ),
        Rule(
            "!has(self.resources.claims) || self.resources.claims.all(claim,"
            " has(self.resourceClaims) &&"
            " self.resourceClaims.exists(one, one.name == claim.name))",
            "each must have the name of one of resourceClaims",
            ".resources.claims",
        ),
        Rule(
            "!has(self.engine.swapMemory) || !has(self.resources.memory) ||"
            " quantity(string(self.engine.swapMemory))"
            ".isLessThan(quantity(string(self.resources.memory)))",
            "must be less than resources.memory: the weights and the engine need the rest",
            ".engine.swapMemory",
        ),
        Rule(
            "self.resources.gpu.count > 0 || !has(self.engine.kvCacheMemory) ||"
            " !has(self.resources.memory) ||"
            " quantity(string(self.engine.kvCacheMemory))"
            ".isLessThan(quantity(string(self.resources.memory)))",
            "must be less than resources.memory on a CPU: the weights and the engine need the rest",
            ".engine.kvCacheMemory",
        ),
        Rule(
            "self.resources.gpu.count == 0 || self.engine.dtype == 'Auto' ||"
            " self.engine.dtype == 'BFloat16' ||"
            " (self.engine.quantization != 'FP8Dynamic' &&"
            " (!has(self.engine.speculative.draftQuantization) ||"
            " self.engine.speculative.draftQuantization != 'FP8Dynamic'))",
            "must be Auto or BFloat16 beside FP8Dynamic: a GPU's products of FP8 give bfloat16",
            ".engine.dtype",
        ),
        Rule(
            "self.resources.gpu.count == 0 || self.engine.quantization != 'AsStored'",
            "must not be AsStored beside a GPU: blocks of a GGUF file are multiplied on a CPU only",
            ".engine.quantization",
        ),
        Rule(
            "self.resources.gpu.count == 0 ||"
            " !has(self.engine.speculative.draftQuantization) ||"
            " self.engine.speculative.draftQuantization != 'AsStored'",
            "must not be AsStored beside a GPU: blocks of a GGUF file are multiplied on a CPU only",
            ".engine.speculative.draftQuantization",
        ),
        Rule(
            "self.engine.dtype != 'Float16' || (self.engine.quantization != 'AsStored' &&"
            " (!has(self.engine.speculative.draftQuantization) ||"
            " self.engine.speculative.draftQuantization != 'AsStored'))",
            "must be Auto, BFloat16 or Float32 beside AsStored",
            ".engine.dtype",
        ),
        Rule(
            "!has(self.adapters) || size(self.adapters) <= self.engine.lora.maxAdapters",
            "must be no more than engine.lora.maxAdapters: their memory is taken at start",
            ".adapters",
        ),
        Rule(
            "!has(self.adapters) || self.adapters.all(adapter,"
            " !adapter.uri.startsWith('pvc://') || (has(self.engine.lora.claimName) &&"
            " adapter.uri.startsWith('pvc://' + self.engine.lora.claimName + '/')))",
            "pvc:// must name the claim of engine.lora.claimName: it is mounted when a pod starts",
            ".adapters",
        ),
        Rule(
            "!has(self.adapters) || !has(self.model.servedName) ||"
            " self.adapters.all(adapter, adapter.name != self.model.servedName)",
            "no adapter may have the name of the model itself",
            ".adapters",
        ),
        _below_capacity("batchSize", "maxBatchSize"),
        _below_capacity("tokenBudget", "maxTokenBudget"),
    )

    model: Annotated[ModelSpec, OnChange.COLD]
    """Which weights are served."""
    engine: Annotated[EngineSpec, OnChange.COLD] = EngineSpec()
    """How the engine is started."""
    sla: Annotated[SlaSpec | None, OnChange.HOT] = None
    """The declared p99 targets."""
    lanes: Annotated[Lanes, OnChange.HOT] = Lanes()
    """How interactive and batch requests share a step."""
    tuning: Annotated[Tuning, OnChange.HOT] = Tuning()
    """How the operator moves the live limits."""
    admission: Annotated[AdmissionSpec, OnChange.HOT] = AdmissionSpec()
    """Which requests are refused on arrival."""
    adapters: Annotated[
        Annotated[
            list[AdapterSpec],
            Field(json_schema_extra=listed("map", max_items=MAX_ADAPTERS, keys=("name",))),
        ]
        | None,
        OnChange.HOT,
    ] = None
    """All LoRA adapters that every pod is to have: none of them restarts a pod."""
    replicas: Annotated[int, Field(ge=0, le=1000), OnChange.NO_RESTART] = 1
    """Pods; the only field that an autoscaler writes, through /scale."""
    rollout: Rollout = Rollout()
    """How a new pod template replaces the old one."""
    resources: Resources = Resources()
    """What one pod asks for."""
    resource_claims: Annotated[
        Annotated[
            list[PodClaim],
            Field(json_schema_extra=listed("map", max_items=MAX_CLAIMS, keys=("name",))),
        ]
        | None,
        OnChange.COLD,
    ] = None
    """Claims of devices, as in a pod's spec; the engine sees those of `resources.claims`."""
    sidecar: Annotated[SidecarSpec, OnChange.COLD] = SidecarSpec()
    """The container that speaks HTTP."""
    image_pull_secrets: Annotated[
        Annotated[
            list[SecretRef],
            Field(json_schema_extra=listed("map", max_items=16, keys=("name",))),
        ]
        | None,
        OnChange.COLD,
    ] = None
    """Secrets in the same namespace for the registries of images and oci:// models."""
    scheduling: Annotated[Scheduling, OnChange.COLD] = Scheduling()
    """Which nodes may run the pods."""
    api: Api = Api()
    """Keys and certificate of the OpenAI API, whose files are watched, and gateways before it."""
    network: Annotated[NetworkSpec, OnChange.NO_RESTART] = NetworkSpec()
    """Who may reach the pods."""
    monitoring: Annotated[Monitoring, OnChange.NO_RESTART] = Monitoring()
    """Prometheus Operator objects for this service."""
    disruption: Annotated[Disruption, OnChange.NO_RESTART] = Disruption()
    """What a node drain may take away at once."""
    pod_metadata: Annotated[PodMetadata, OnChange.COLD] = PodMetadata()
    """Labels and annotations of every pod."""
    pod_overrides: Annotated[PodOverrides, OnChange.COLD] = PodOverrides()
    """What a pod needs in this cluster beside all that: variables, volumes, names, groups."""
    paused: Annotated[bool, OnChange.NO_RESTART] = False
    """Freezes every write to children; tuning holds its last value."""


class ObjectMeta(Part):
    """The part of an object's metadata that we read."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: int = 0
    """Versions can be compared: the higher one is newer."""
    deletion_timestamp: str | None = None


class InferenceService(Part):
    """Serves a language model and keeps a declared p99 SLA."""

    metadata: ObjectMeta
    spec: Spec
    status: Status = Status()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def served_name(self) -> str:
        """`model` in requests."""
        return self.spec.model.served_name or self.metadata.name

    @property
    def admin_tls(self) -> bool:
        """Whether its pods' port 8001 speaks TLS."""
        return bool(self.ca_bundle)

    @property
    def ca_bundle(self) -> str:
        """What its pods' certificate is verified by on port 8001, in PEM; empty without TLS."""
        return (self.spec.api.tls and self.spec.api.tls.ca_bundle) or ""

    @property
    def server_name(self) -> str:
        """The name that this certificate must hold."""
        own = self.spec.api.tls and self.spec.api.tls.server_name
        return own or f"{self.metadata.name}.{self.metadata.namespace}.svc"

    @classmethod
    def read(cls, raw: dict[str, Any]) -> "InferenceService":
        """Read an object as the API server gives it: validated, defaulted, pruned."""
        return cls.model_validate(raw)
