"""The parts of spec that Kubernetes acts on: rollout, resources, scheduling, access."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema

from paceline_api.device_claims import MAX_CLAIMS, ClaimLabel, EngineClaim
from paceline_api.gateway_spec import InferencePool
from paceline_api.part import OnChange, Part, Rule, listed
from paceline_api.units import CountOrPercent, Name, Price, Quantity

LabelValue = Annotated[str, Field(max_length=63)]
Labels = Annotated[dict[str, LabelValue], Field(max_length=64)]
Annotations = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=64)]

_IS_ZERO = "(type(self.{0}) == int ? self.{0} == 0 : self.{0} == '0%')"


class Rollout(Part):
    """How a new pod template replaces the old one."""

    cel_rules: ClassVar = (
        Rule(
            f"!({_IS_ZERO.format('maxSurge')} && {_IS_ZERO.format('maxUnavailable')})",
            "maxSurge and maxUnavailable must not both be 0: nothing could be replaced",
            ".maxUnavailable",
        ),
    )

    max_surge: Annotated[CountOrPercent, OnChange.NO_RESTART] = 1
    """Pods above `replicas` while a new template replaces the old one."""
    max_unavailable: Annotated[CountOrPercent, OnChange.NO_RESTART] = 0
    """Pods that may be missing meanwhile."""
    drain_seconds: Annotated[int, Field(ge=0, le=3600), OnChange.COLD] = 120
    """How long a leaving pod may finish its running requests."""
    startup_seconds: Annotated[int, Field(ge=10, le=86_400), OnChange.NO_RESTART] = 1800
    """How long a pod may load its model before it counts as failed."""
    image_policy: Annotated[Literal["Pinned", "FollowOperator"], OnChange.NO_RESTART] = "Pinned"
    """Pinned: the pods keep the images that they have, until `engine.image` names another.
    FollowOperator: after an upgrade of the operator they get its images, of the sidecar and, unless
    `engine.image` names one, of the engine. Either way new images are tried on one pod first."""
    canary_seconds: Annotated[int, Field(ge=0, le=86_400), OnChange.NO_RESTART] = 900
    """How long the requests of one pod with new images are compared with those of the others before
    they go on to all pods where no difference was found; where they are worse, they go back at
    once."""


class GpuSpec(Part):
    """Accelerators of one pod."""

    cel_rules: ClassVar = (
        Rule(
            "!has(self.claim) || self.count > 0",
            "must be how many GPUs the claim brings: 0 serves on the CPU",
            ".count",
        ),
        Rule(
            "!has(self.claim) || self.resourceName == 'nvidia.com/gpu'",
            "must be left out beside claim, which brings the GPUs: none is asked for by name",
            ".resourceName",
        ),
    )

    count: Annotated[int, Field(ge=0, le=16)] = 1
    """0 serves on the CPU."""
    resource_name: Annotated[
        str, Field(pattern=r"^[a-z0-9.-]+/[a-zA-Z0-9._-]+$", max_length=253)
    ] = "nvidia.com/gpu"
    """Name of the extended resource that a device plugin offers, such as `nvidia.com/gpu`,
    `nvidia.com/mig-1g.10gb` or `nvidia.com/gpu.shared`."""
    claim: ClaimLabel | None = None
    """The one of `resources.claims` that brings the GPUs, instead of a device plugin."""


class Resources(Part):
    """What the engine's container asks for."""

    cel_rules: ClassVar = (
        Rule(
            "!has(self.gpu.claim) ||"
            " (has(self.claims) && self.claims.exists(one, one.name == self.gpu.claim))",
            "must be one of resources.claims",
            ".gpu.claim",
        ),
        Rule(
            "!self.exclusiveCpus || (has(self.cpu) && string(self.cpu).matches('^[1-9][0-9]*$'))",
            "must be a whole number with exclusiveCpus: a CPU is given whole or not at all",
            ".cpu",
        ),
        Rule(
            "!self.exclusiveCpus || has(self.memory)",
            "is needed by exclusiveCpus: only a pod that limits both has CPUs of its own",
            ".memory",
            is_required=True,
        ),
    )

    gpu: Annotated[GpuSpec, OnChange.COLD] = GpuSpec()
    """Accelerators of one pod."""
    claims: Annotated[
        Annotated[
            list[EngineClaim],
            Field(json_schema_extra=listed("map", max_items=MAX_CLAIMS, keys=("name",))),
        ]
        | None,
        OnChange.COLD,
    ] = None
    """Claims whose devices the engine sees, each one of `resourceClaims`."""
    cpu: Annotated[Quantity | None, OnChange.COLD] = None
    """Requested CPU; the engine may use more when the node has it."""
    exclusive_cpus: Annotated[bool, OnChange.COLD] = False
    """Whether the pod is of the class Guaranteed, so that the kubelet's static CPU manager policy
    gives the engine `cpu` CPUs that nobody else uses; its threads are then pinned to cores. Without
    that policy on the node, `cpu` is only a limit. The sidecar then has 900m CPU and 1Gi."""
    memory: Annotated[Quantity | None, OnChange.COLD] = None
    """Requested memory, and its limit."""
    shared_memory: Annotated[Quantity | None, OnChange.COLD] = None
    """Size of /dev/shm, which counts as the engine's memory. When absent: 1Gi where several GPUs
    share the model, as they meet there; else the 64Mi of any container."""
    price_per_hour: Annotated[Price | None, OnChange.NO_RESTART] = None
    """What one pod costs an hour, such as `2.49`, in whatever currency you reckon in. Status,
    metrics, `paceline diagnose` and `paceline plan` then tell the cost of a million tokens; nothing
    else depends on it."""


class SidecarResources(Part):
    """What the sidecar's container asks for."""

    cpu: Quantity | None = None
    """Requested CPU; 100m when absent, 900m with `resources.exclusiveCpus`, where it is a limit
    too."""
    memory: Quantity | None = None
    """Requested memory, and its limit. When absent: 256Mi without a limit, 1Gi with
    `resources.exclusiveCpus`."""


class SidecarSpec(Part):
    """The container that speaks HTTP."""

    resources: SidecarResources = SidecarResources()


class Toleration(Part):
    """A toleration as in a pod's spec."""

    key: Annotated[str, Field(max_length=317)] | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, Field(ge=0)] | None = None


class TopologySpreadConstraint(Part):
    """How evenly the service's pods spread; the selector is the service's own."""

    cel_rules: ClassVar = (
        Rule(
            "!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'",
            "needs whenUnsatisfiable: DoNotSchedule",
            ".minDomains",
        ),
    )

    max_skew: Annotated[int, Field(ge=1, le=1000)]
    """How many pods one domain may have more than another."""
    topology_key: Annotated[
        str, Field(pattern=r"^([-a-z0-9.]+/)?[A-Za-z0-9][-A-Za-z0-9_.]*$", max_length=317)
    ]
    """The label of nodes whose values are the domains, such as `topology.kubernetes.io/zone`."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    min_domains: Annotated[int, Field(ge=1, le=1000)] | None = None
    """How many domains there must be for a skew to be counted between them."""
    match_label_keys: (
        Annotated[
            list[Annotated[str, Field(max_length=317)]],
            Field(json_schema_extra=listed("set", max_items=8)),
        ]
        | None
    ) = None
    """Labels of a pod whose value the pods that it is counted with share; `pod-template-hash`
    counts those of a rollout apart."""


Affinity = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]


class Scheduling(Part):
    """Which nodes may run the pods."""

    cel_rules: ClassVar = (
        Rule(
            "self.topologySpread == 'None' || !has(self.topologySpreadConstraints) ||"
            " self.topologySpreadConstraints.all(one,"
            " one.topologyKey != 'kubernetes.io/hostname')",
            "must be None where topologySpreadConstraints spread over kubernetes.io/hostname",
            ".topologySpread",
        ),
    )

    node_selector: Labels | None = None
    """Labels that a node must have."""
    tolerations: (
        Annotated[list[Toleration], Field(json_schema_extra=listed("atomic", max_items=32))] | None
    ) = None
    affinity: Affinity | None = None
    """Affinity as in a pod's spec; checked when the Deployment is written."""
    topology_spread: Literal["Preferred", "Required", "None"] = "Preferred"
    """Whether pods spread over nodes: if possible, always or not at all."""
    topology_spread_constraints: (
        Annotated[
            list[TopologySpreadConstraint],
            Field(
                json_schema_extra=listed(
                    "map", max_items=8, keys=("topologyKey", "whenUnsatisfiable")
                )
            ),
        ]
        | None
    ) = None
    """How they spread besides, as in a pod's spec, such as over zones."""
    priority_class_name: Name | None = None
    """A PriorityClass: whom the pods displace, and who displaces them."""
    runtime_class_name: Name | None = None
    """A RuntimeClass, such as `nvidia`, where the node's default runtime brings no GPU."""
    scheduler_name: Name | None = None
    """A scheduler beside Kubernetes' own."""


class SecretRef(Part):
    """A Secret in the same namespace."""

    name: Name


class SecretKeys(Part):
    """A Secret that holds a file of API keys."""

    name: Name
    """The Secret."""
    key: Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)] = "keys"
    """Its key that holds the file."""


class Auth(Part):
    """Who may call."""

    api_keys_secret_ref: SecretKeys | None = None
    """Lines of `KEY` or `NAME: KEY`; watched, a change needs no restart."""


class Tls(Part):
    """A Secret of type kubernetes.io/tls."""

    cel_rules: ClassVar = (
        Rule(
            "!has(self.serverName) || has(self.caBundle)",
            "serverName is what the operator verifies by caBundle: it needs one",
            ".serverName",
        ),
    )

    secret_ref: SecretRef
    ca_bundle: (
        Annotated[str, Field(pattern=r"^-----BEGIN CERTIFICATE-----", max_length=65536)] | None
    ) = None
    """Certificates in PEM by which the operator verifies the pods. Given, port 8001 speaks TLS
    with the same certificate; absent, it speaks plain HTTP."""
    server_name: Name | None = None
    """A name in the certificate; absent, `NAME.NAMESPACE.svc`. Pods are called by their address,
    which no certificate holds."""


class Batches(Part):
    """Where files and batches of the OpenAI API are kept."""

    claim_name: Name
    """A PersistentVolumeClaim that the sidecar writes to: they survive its restarts. With several
    replicas it must be ReadWriteMany and know `flock`: any pod then answers for any batch."""


class Api(Part):
    """The OpenAI API on port 8000: who may call, its certificate, and what gateways are told."""

    auth: Annotated[Auth | None, OnChange.COLD] = None
    tls: Annotated[Tls | None, OnChange.COLD] = None
    batches: Annotated[Batches | None, OnChange.COLD] = None
    """Absent: files and batches end with the sidecar's process."""
    docs: Annotated[bool, OnChange.COLD] = True
    """Whether `/openapi.json` and `/docs` describe the API, to callers without a key too."""
    gateway: Annotated[Literal["None", "EnvoyGateway"], OnChange.NO_RESTART] = "None"
    """EnvoyGateway: a BackendTrafficPolicy for every HTTPRoute of this namespace with the label
    `serving.paceline.dev/service: NAME`. Pods get requests by what they report that they can serve,
    a 503 is tried on another pod, and the service ends a request before the gateway does."""
    inference_pool: Annotated[InferencePool | None, OnChange.NO_RESTART] = None
    """An InferencePool of the Gateway API's inference extension, over the service's pods."""


class Peer(Part):
    """Who may connect: pods of the namespaces that match, or addresses outside the cluster."""

    cel_rules: ClassVar = (
        Rule(
            "!has(self.cidr) || (!has(self.namespaceLabels) && !has(self.podLabels))",
            "cidr stands alone: addresses outside the cluster have no labels",
            ".cidr",
        ),
    )

    namespace_labels: Labels | None = None
    """Absent: the service's own namespace."""
    pod_labels: Labels | None = None
    """Absent: every pod of these namespaces. `{}` is every pod of the service's own namespace."""
    cidr: Annotated[str, Field(pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$", max_length=43)] | None = None
    """Addresses outside the cluster, such as `192.0.2.0/24`; `0.0.0.0/0` or `::/0` is everyone,
    pods included."""


class NetworkSpec(Part):
    """Who may reach the pods, and whom they may reach."""

    policy: Literal["Restricted", "None"] = "Restricted"
    """Restricted: a NetworkPolicy opens ports 8000 and 8002 for `allowFrom`, port 8001 for the
    operator and for namespaces labelled `serving.paceline.dev/metrics=allowed`, and bounds
    `egress`."""
    allow_from: (
        Annotated[list[Peer], Field(json_schema_extra=listed("atomic", max_items=32))] | None
    ) = None
    """Everyone who may call port 8000, and hear on 8002 how busy a pod is. Absent: the service's
    own namespace; `[]`: nobody."""
    egress: Literal["ModelSource", "Anywhere"] = "ModelSource"
    """ModelSource: DNS, TCP 443 and the port of a proxy or mirror in `podOverrides.env` where a
    model, draft or adapter is downloaded by the pod (hf://), and nothing otherwise. A policy of
    your own opens more."""


class Monitoring(Part):
    """Objects of the Prometheus Operator for this service, where the cluster has it."""

    pod_monitor: bool = False
    """A PodMonitor that scrapes this service's pods. With the chart's `servicePodMonitor` each pod
    would be scraped twice."""
    rules: bool = False
    """A PrometheusRule with the alerts of this service, burn rates against `sla.objective`. The
    chart's `prometheusRule` has the same alerts for all services."""
    labels: Labels | None = None
    """Labels of both, for the selector of your Prometheus."""


class Disruption(Part):
    """What a node drain may take away at once."""

    budget: Literal["Auto", "None"] = "Auto"
    """Auto: one pod at a time when there is more than one."""


class PodMetadata(Part):
    """Added to every pod."""

    labels: Labels | None = None
    """Labels beside the operator's own, such as `kueue.x-k8s.io/queue-name`."""
    annotations: Annotations | None = None
    """Annotations, such as those of a service mesh."""
