"""Every reason of every condition, what it means and what to do, as docs/conditions.md has them.

Whether a transition is told as an event, and of which type, is asked of the code that tells it.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, get_args

from paceline_api.status import ConditionEntry, RolloutVerdict
from paceline_operator.events import is_trouble, is_worth_telling
from paceline_tuner.condition import Truth
from paceline_tuner.service_report import ExperimentVerdict


class Reason(NamedTuple):
    """One reason of one condition."""

    status: Truth
    name: str
    means: str
    do: str = ""
    """What to do; empty where there is nothing."""


class About(NamedTuple):
    """One condition."""

    says: str
    reasons: tuple[Reason, ...]


_OVERLOAD: Final = "[more is asked than can be served](runbooks/overload.md)"
_ENGINE: Final = "[an engine is down](runbooks/engine-down.md)"
_TUNING: Final = "[the limits do not follow](runbooks/tuning.md)"
_SLOW: Final = "[one pod is slow](runbooks/degraded-hardware.md)"
_NO_PODS: Final = Reason("Unknown", "NoReadyPods", "no pod is ready to be measured")
_UNSUPPORTED: Final = "the spec asks for what this operator cannot do; the message names it"
_WRITE: Final = "the pods, or another object of the service, cannot be written or make no progress"
_WRITE_DO: Final = (
    "read the message, in the words of who refused:"
    " [reconciling fails](runbooks/reconcile-errors.md)"
)
_BACK: Final = "new images failed or were worse, and the old ones serve"
_BACK_DO: Final = "name another image: [new images](runbooks/image-rollout.md)"

CONDITIONS: Final[dict[str, About]] = {
    "Ready": About(
        "The wanted pods serve what the spec says. It does not depend on the SLA. Where"
        " `ModelAvailable` or `WorkloadAvailable` is in the way, it has their reason.",
        (
            Reason("True", "PodsReady", "as many pods as wanted are ready and of the present spec"),
            Reason("True", "ScaledToZero", "`spec.replicas` is 0"),
            Reason("False", "Progressing", "pods start, or old ones are being replaced", "wait"),
            Reason("False", "RolloutBlocked", _WRITE, _WRITE_DO),
            Reason("False", "RolledBack", _BACK, _BACK_DO),
            Reason(
                "False", "Unsupported", _UNSUPPORTED, "change the spec, or upgrade the operator"
            ),
        ),
    ),
    "Reconciling": About(
        "The cluster is on its way to the spec; as kstatus has it. While it is True its reason is"
        " that of `Ready`.",
        (
            Reason("False", "Settled", "nothing is under way"),
            Reason("False", "Paused", "`spec.paused` keeps the service as it is", "end the pause"),
        ),
    ),
    "Stalled": About(
        "Waiting does not help: a person must act; as kstatus has it. It also has the reasons of"
        " `ModelAvailable` that last, and `SecretMissing`.",
        (
            Reason("False", "NotStalled", "nothing asks for a person"),
            Reason("True", "RolloutBlocked", _WRITE, _WRITE_DO),
            Reason("True", "RolledBack", _BACK, _BACK_DO),
            Reason("True", "Unsupported", _UNSUPPORTED, "change the spec, or upgrade the operator"),
        ),
    ),
    "ModelAvailable": About(
        "The weights are where they are needed. The reasons of a failure are the engine's own.",
        (
            Reason("True", "Loaded", "an engine has loaded the model"),
            Reason("Unknown", "NoRunningPod", "no engine runs yet"),
            Reason(
                "False",
                "Downloading",
                "the engine fetches the model",
                "wait; `status.loading` has the per cent",
            ),
            Reason(
                "False",
                "Loading",
                "the engine loads the model",
                "wait; `status.loading` has stage and per cent",
            ),
            Reason(
                "False",
                "DownloadFailed",
                "the hub did not answer, or wants its terms accepted; the engine tries again",
                "if it stays: the network from the pod, `network.egress`, the token",
            ),
            Reason(
                "False",
                "ModelNotFound",
                "nothing is at `model.uri`",
                "correct the URI; a private model needs `model.credentialsSecretRef`",
            ),
            Reason(
                "False",
                "RevisionNotFound",
                "the repository has no such `model.revision`",
                "correct it",
            ),
            Reason(
                "False",
                "CorruptModel",
                "a file is cut short or cannot be read",
                "fetch or upload the files anew",
            ),
            Reason(
                "False",
                "UnsupportedModel",
                "the engine does not know the architecture, or a kind of its tensors",
                "choose another model or file",
            ),
            Reason(
                "False",
                "UnsupportedDevice",
                "the GPU is too old, or its driver is",
                _ENGINE,
            ),
            Reason(
                "False",
                "DoesNotFit",
                "weights and a KV cache do not fit into the memory; the message has the sums",
                "a larger device, quantization, a smaller `maxModelLen`, more GPUs",
            ),
            Reason(
                "False",
                "CacheFull",
                "the volume of `model.cache` is full",
                "enlarge it, or clear it",
            ),
            Reason(
                "False",
                "BadSettings",
                "settings that exclude each other; the message names them",
                "correct the spec",
            ),
        ),
    ),
    "WorkloadAvailable": About(
        "The wanted pods run.",
        (
            Reason("True", "Available", "as many pods are ready as are wanted"),
            Reason("False", "Progressing", "pods start", "wait"),
            Reason(
                "False",
                "Unschedulable",
                "no node takes the pod; the message is the scheduler's. An unbound claim "
                "is one cause",
                "make room, or change `resources` or `scheduling`",
            ),
            Reason(
                "False",
                "InsufficientGPU",
                "no node has as many GPUs free",
                "add a node, or free GPUs",
            ),
            Reason(
                "False",
                "SchedulingGated",
                "a scheduling gate keeps the pod from the scheduler, such as Kueue's until there"
                " is quota; the message names it",
                "wait, or see to the queue: [placement](placement.md#queues)",
            ),
            Reason(
                "False",
                "ImagePull",
                "an image cannot be pulled",
                "its name, the registry, `imagePullSecrets`",
            ),
            Reason(
                "False",
                "OutOfMemory",
                "a container exceeded its memory limit",
                "raise `resources.memory`, or lower `engine.capacity`",
            ),
            Reason(
                "False", "CrashLoop", "a container keeps ending; the message is its last", _ENGINE
            ),
            Reason(
                "False",
                "SecretMissing",
                "a Secret, or a key in it, is not there; the message names it and the "
                "field that asks",
                "create it: the pod starts by itself",
            ),
            Reason(
                "False",
                "VolumeUnavailable",
                "a volume cannot be mounted; the message is the kubelet's",
                "its claim, its driver",
            ),
            Reason("False", "RolloutBlocked", _WRITE, _WRITE_DO),
        ),
    ),
    "TelemetryAvailable": About(
        "The tuner sees its pods.",
        (
            Reason("True", "MetricsFresh", "all pods give telemetry"),
            Reason("True", "NoTraffic", "all pods give telemetry, and nobody asks them anything"),
            Reason("False", "ScrapeFailed", "one pod or all give none", _TUNING),
            Reason(
                "False",
                "TokenRefused",
                "pods know another token than the operator",
                "run the command in the message; pods serve on",
            ),
            Reason("Unknown", "MetricsStale", "no pod is there to ask"),
            _NO_PODS,
        ),
    ),
    "SLAMet": About(
        "Enough requests of the window meet every target, with hysteresis.",
        (
            Reason("True", "Meeting", "requests meet the SLA"),
            Reason(
                "False",
                "Violating",
                "too many miss it",
                "[the SLA is missed](runbooks/sla-burning.md)",
            ),
            Reason("Unknown", "NoTraffic", "no request in the window"),
            Reason("Unknown", "InsufficientSamples", "too few requests to tell, or no telemetry"),
            _NO_PODS,
        ),
    ),
    "SLAAchievable": About(
        "Limits exist that keep the SLA at the present load.",
        (
            Reason("True", "Achievable", "they do"),
            Reason(
                "False",
                "CapacityExceeded",
                "more requests arrive than the pods can serve within the SLA",
                f"more replicas: {_OVERLOAD}",
            ),
            Reason(
                "False",
                "KVBound",
                "KV memory bounds the batch below what the load needs",
                f"more replicas or memory: {_OVERLOAD}",
            ),
            Reason(
                "False",
                "TTFTvsTPOTConflict",
                "prompts cannot be computed in time without slowing running requests",
                f"more replicas: {_OVERLOAD}",
            ),
            Reason(
                "False",
                "TPOTFloor",
                "one request alone is slower than the target of tokens",
                "a faster device, a smaller model, or another target; replicas do not help",
            ),
            Reason(
                "False",
                "TTFTFloor",
                "a long prompt alone takes longer than the target of first tokens",
                "the same, or [a target for long prompts](overload.md)",
            ),
            Reason(
                "False",
                "E2EFloor",
                "a long answer alone takes longer than the end-to-end target",
                "the same, or shorter answers",
            ),
            Reason(
                "False",
                "DegradedHardware",
                "a pod's device is slower than it was, and that is what is missing",
                _SLOW,
            ),
            Reason(
                "Unknown",
                "InsufficientData",
                "the step model has too few steps to be trusted",
                "wait for traffic",
            ),
            _NO_PODS,
        ),
    ),
    "DeviceHealthy": About(
        "Steps take as long as they did on the same device, whether or not the SLA is met.",
        (
            Reason("True", "Steady", "they do"),
            Reason(
                "False",
                "DegradedHardware",
                "for half a minute or more, a pod's steps have taken over 15 % longer",
                _SLOW,
            ),
            Reason(
                "Unknown",
                "InsufficientData",
                "the step model has too few steps to be trusted",
                "wait for traffic",
            ),
            _NO_PODS,
        ),
    ),
    "TuningActive": About(
        "Limits follow the measurements.",
        (
            Reason("True", "Tuning", "they do"),
            Reason("False", "Paused", "`spec.paused` holds the limits", "end the pause"),
            Reason("False", "Observe", "`tuning.mode: Observe` computes limits and applies none"),
            Reason("False", "Fixed", "`tuning.mode: Fixed` holds the initial limits"),
            Reason("False", "TelemetryLoss", "no pod gives telemetry", _TUNING),
            Reason(
                "False",
                "ModelUntrusted",
                "the step model does not hold, so limits go by trial and error",
                "nothing at first; if it stays, look for others that use the device",
            ),
            _NO_PODS,
        ),
    ),
    "ExtrasAvailable": About(
        "What serving does not need is there: the headless Service, and what `monitoring`,"
        " `api.gateway` and `api.inferencePool` ask for."
        " Absent where nothing is asked for and nothing is missing.",
        (
            Reason("True", "Written", "what `monitoring` and `api` ask for is there"),
            Reason(
                "False",
                "KindMissing",
                "the cluster has no such kind",
                "install what the message names, such as the Prometheus Operator or Envoy Gateway;"
                " it is noticed within a minute",
            ),
            Reason(
                "False",
                "NameTaken",
                "an object of that name is somebody else's",
                "rename or delete theirs",
            ),
            Reason("False", "WriteRefused", "the API server refuses it", "read the message"),
            Reason(
                "False",
                "Progressing",
                "an earlier object of that name is still being deleted",
                "wait",
            ),
        ),
    ),
}
"""By type, in the order in which status has them."""

_VERDICTS: Final = {
    "Better": "the candidate misses fewer targets",
    "NoDifference": "no difference was found",
    "Worse": "the candidate misses more targets and was taken back",
    "Aborted": "it was ended before a verdict",
    "Failed": "the pod with new images could not serve, and they were taken back",
}
_OTHER_EVENTS: Final = (
    ("AdapterRefused", "Warning", "an engine refused an adapter; the note has its words"),
    (
        "OrphansAdopted",
        "Normal",
        "objects that an earlier service of this name left are this one's now",
    ),
    (
        "CRDOutdated",
        "Warning",
        "the definition is older than the operator and drops fields: apply `crds/` anew",
    ),
)


def event_of(kind: str, reason: Reason) -> str:
    """Return the type of the event that tells of a transition to this; empty where none does."""
    entry = ConditionEntry(
        type=kind,
        status=reason.status,
        reason=reason.name,
        message="",
        last_transition_time="2026-01-01T00:00:00Z",
    )
    before = entry.model_copy(update={"reason": "Before"})
    if not is_worth_telling(before, entry):
        return ""
    return "Warning" if is_trouble(entry) else "Normal"


def tables() -> dict[str, str]:
    """Return each table by the name in its markers."""
    return {"conditions": _conditions(), "events": _events()}


def _conditions() -> str:
    return "\n\n".join(_section(kind, about) for kind, about in CONDITIONS.items())


def _section(kind: str, about: About) -> str:
    rows = [
        f"| {reason.status} | `{reason.name}` | {reason.means} | {reason.do or '-'} |"
        f" {event_of(kind, reason) or '-'} |"
        for reason in about.reasons
    ]
    head = ["| Status | Reason | Means | Do | Event |", "|---|---|---|---|---|"]
    return "\n".join([f"## {kind}", "", about.says, "", *head, *rows])


def _events() -> str:
    rows = [*_verdict_rows("Experiment", get_args(ExperimentVerdict))]
    rows += _verdict_rows("Rollout", get_args(RolloutVerdict))
    rows += [f"| `{name}` | {kind} | {means} |" for name, kind, means in _OTHER_EVENTS]
    return "\n".join(["| Reason | Type | Means |", "|---|---|---|", *rows])


def _verdict_rows(what: str, verdicts: tuple[str, ...]) -> Iterator[str]:
    for verdict in verdicts:
        if verdict != "Running":  # no event tells that nothing is known yet
            kind = "Warning" if verdict in {"Worse", "Failed"} else "Normal"
            yield f"| `{what}{verdict}` | {kind} | {_VERDICTS[verdict]} |"
