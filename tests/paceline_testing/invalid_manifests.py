"""One passing and one failing manifest for each rule of the InferenceService."""

from dataclasses import dataclass
from typing import Any

from paceline_testing.services import a_manifest

_HF = "hf://HuggingFaceTB/SmolLM2-135M-Instruct"
_CERT: dict[str, Any] = {"secretRef": {"name": "edge-tls"}}
_PEM = "-----BEGIN CERTIFICATE-----"
_TWO_GPUS: dict[str, Any] = {"resources": {"gpu": {"count": 2}}}
_TARGETS: dict[str, Any] = {"ttft": {"p99": "500ms"}}


@dataclass(frozen=True, slots=True)
class Case:
    """`passing` is taken, `failing` is refused with a sentence that names `field`."""

    id: str
    field: str
    passing: dict[str, Any]
    failing: dict[str, Any]
    sentence: str = ""


def sla(**targets: str) -> dict[str, Any]:
    """An SLA of these p99 targets."""
    return {"sla": {name: {"p99": value} for name, value in targets.items()}}


def by_prompt(*classes: tuple[int | None, str], **targets: str) -> dict[str, Any]:
    """An SLA of TTFT targets by prompt length, and of other p99 targets."""
    declared = [
        {"p99": target} | ({} if up_to is None else {"upTo": up_to}) for up_to, target in classes
    ]
    return {"sla": sla(**targets)["sla"] | {"ttft": {"byPromptTokens": declared}}}


def _draft(**fields: Any) -> dict[str, Any]:
    return {"engine": {"speculative": {"method": "Draft", "draftModelUri": _HF} | fields}}


def _fp8_draft(*, gpus: int) -> dict[str, Any]:
    speculative = {
        "method": "Draft",
        "draftModelUri": "file:///draft",
        "draftQuantization": "FP8Dynamic",
    }
    return {
        "engine": {"dtype": "Float32", "speculative": speculative},
        "resources": {"gpu": {"count": gpus}},
    }


def _stored_draft(*, gpus: int) -> dict[str, Any]:
    speculative = {
        "method": "Draft",
        "draftModelUri": "file:///draft.gguf",
        "draftQuantization": "AsStored",
    }
    return {"engine": {"speculative": speculative}, "resources": {"gpu": {"count": gpus}}}


def _adapters(
    *adapters: dict[str, str], room: int = 4, claim: str | None = None, served: str | None = None
) -> dict[str, Any]:
    lora = {"maxAdapters": room} | ({"claimName": claim} if claim else {})
    model = {"uri": "builtin://x"} | ({"servedName": served} if served else {})
    return {"adapters": list(adapters), "engine": {"lora": lora}, "model": model}


def _overrides(**fields: Any) -> dict[str, Any]:
    return {"podOverrides": fields}


def _claims(*, gpu: dict[str, Any] | None = None, **sources: str) -> dict[str, Any]:
    """A service that uses the claim `gpu`, which these fields of `resourceClaims` name."""
    return {
        "resources": {"gpu": gpu or {"claim": "gpu"}, "claims": [{"name": "gpu"}]},
        "resourceClaims": [{"name": "gpu"} | (sources or {"resourceClaimName": "team-gpu"})],
    }


def _spread(*constraints: dict[str, Any], nodes: str = "Preferred") -> dict[str, Any]:
    return {"scheduling": {"topologySpread": nodes, "topologySpreadConstraints": [*constraints]}}


_LOOSE: dict[str, Any] = {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
_ZONE: dict[str, Any] = {"topologyKey": "topology.kubernetes.io/zone"} | _LOOSE
_HOST: dict[str, Any] = {"topologyKey": "kubernetes.io/hostname"} | _LOOSE
_STRICT: dict[str, Any] = {"whenUnsatisfiable": "DoNotSchedule"}


def _tuning(**fields: Any) -> dict[str, Any]:
    return {"tuning": fields}


def _experiment(policy: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    experiment = {"name": "one", "policy": policy or {"stepMargin": "0.95"}} | fields
    return _tuning(experiment=experiment)


CASES = (
    Case(
        "Auto needs a target",
        "spec.sla",
        {"sla": None, "tuning": {"mode": "Fixed"}},
        {"sla": None},
        "tuning.mode Auto needs at least one target",
    ),
    Case("an SLA has a target", "spec.sla", sla(itl="80ms"), {"sla": {"objective": "0.99"}}),
    Case(
        "hf needs a revision",
        "spec.model.revision",
        {"model": {"uri": _HF, "revision": "12fd25f77366fa6b3b4b768ec3050bf629380bac"}},
        {"model": {"uri": _HF}},
        "a commit cannot",
    ),
    Case("ttft has a floor", "spec.sla.ttft.p99", sla(ttft="1ms"), sla(ttft="0.9ms")),
    Case("ttft has a ceiling", "spec.sla.ttft.p99", sla(ttft="600s"), sla(ttft="601s")),
    Case("tpot has a floor", "spec.sla.tpot.p99", sla(tpot="0.1ms"), sla(tpot="0.05ms")),
    Case("tpot has a ceiling", "spec.sla.tpot.p99", sla(tpot="60s"), sla(tpot="61s")),
    Case("itl has a floor", "spec.sla.itl.p99", sla(itl="0.1ms"), sla(itl="0.05ms")),
    Case("itl has a ceiling", "spec.sla.itl.p99", sla(itl="60s"), sla(itl="60001ms")),
    Case(
        "tpot within ttft",
        "spec.sla.tpot.p99",
        sla(ttft="50ms", tpot="50ms"),
        sla(ttft="50ms", tpot="51ms"),
    ),
    Case(
        "ttft is one target, or some by prompt length",
        "spec.sla.ttft",
        by_prompt((2000, "500ms"), (None, "5s")),
        {"sla": {"ttft": by_prompt((2000, "500ms"), (None, "5s"))["sla"]["ttft"] | {"p99": "5s"}}},
        "declare either p99 or byPromptTokens",
    ),
    Case(
        "ttft has a target",
        "spec.sla.ttft",
        sla(ttft="1s"),
        {"sla": {"ttft": {}}},
        "declare either p99 or byPromptTokens",
    ),
    Case(
        "a class of prompts has a floor",
        "spec.sla.ttft.byPromptTokens[0].p99",
        by_prompt((2000, "1ms"), (None, "5s")),
        by_prompt((2000, "0.5ms"), (None, "5s")),
    ),
    Case(
        "a class of prompts has a ceiling",
        "spec.sla.ttft.byPromptTokens[1].p99",
        by_prompt((2000, "1ms"), (None, "600s")),
        by_prompt((2000, "1ms"), (None, "601s")),
    ),
    Case(
        "a class of prompts has a target",
        "spec.sla.ttft.byPromptTokens[0].p99",
        by_prompt((2000, "1s"), (None, "5s")),
        {"sla": {"ttft": {"byPromptTokens": [{"upTo": 2000}, {"p99": "5s"}]}}},
    ),
    Case(
        "a class of prompts has some",
        "spec.sla.ttft.byPromptTokens[0].upTo",
        by_prompt((1, "1s"), (None, "5s")),
        by_prompt((0, "1s"), (None, "5s")),
    ),
    Case(
        "there is a class of prompts",
        "spec.sla.ttft.byPromptTokens",
        by_prompt((None, "5s")),
        by_prompt(),
    ),
    Case(
        "there are at most eight classes of prompts",
        "spec.sla.ttft.byPromptTokens",
        by_prompt(*((1000 * (k + 1), "1s") for k in range(7)), (None, "5s")),
        by_prompt(*((1000 * (k + 1), "1s") for k in range(8)), (None, "5s")),
    ),
    Case(
        "the last class of prompts has no end",
        "spec.sla.ttft.byPromptTokens",
        by_prompt((2000, "1s"), (None, "5s")),
        by_prompt((2000, "1s"), (8000, "5s")),
        "it is for all longer prompts",
    ),
    Case(
        "each other class of prompts has an end",
        "spec.sla.ttft.byPromptTokens",
        by_prompt((2000, "1s"), (8000, "1s"), (None, "5s")),
        by_prompt((2000, "1s"), (None, "1s"), (None, "5s")),
        "every class but the last needs upTo",
    ),
    Case(
        "classes of prompts rise",
        "spec.sla.ttft.byPromptTokens",
        by_prompt((2000, "1s"), (2001, "1s"), (None, "5s")),
        by_prompt((2000, "1s"), (2000, "1s"), (None, "5s")),
        "upTo must rise",
    ),
    Case(
        "longer prompts have no less time",
        "spec.sla.ttft.byPromptTokens",
        by_prompt((2000, "5000ms"), (None, "5s")),
        by_prompt((2000, "5001ms"), (None, "5s")),
        "a longer prompt takes longer",
    ),
    Case(
        "tpot within ttft of short prompts",
        "spec.sla.tpot.p99",
        by_prompt((2000, "50ms"), (None, "5s"), tpot="50ms"),
        by_prompt((2000, "50ms"), (None, "5s"), tpot="51ms"),
        "any of ttft.byPromptTokens",
    ),
    Case(
        "e2e not before ttft of long prompts",
        "spec.sla.e2e.p99",
        by_prompt((2000, "1s"), (None, "5s"), e2e="5s"),
        by_prompt((2000, "1s"), (None, "5s"), e2e="4s"),
        "any of ttft.byPromptTokens",
    ),
    Case("e2e has a floor", "spec.sla.e2e.p99", sla(e2e="1ms"), sla(e2e="0.9ms")),
    Case(
        "e2e has a ceiling",
        "spec.sla.e2e.p99",
        sla(e2e="3600s") | {"admission": {"requestTimeout": "1h"}},
        sla(e2e="3601s") | {"admission": {"requestTimeout": "1h"}},
    ),
    Case(
        "e2e not before ttft",
        "spec.sla.e2e.p99",
        sla(ttft="5s", e2e="5s"),
        sla(ttft="5s", e2e="4s"),
    ),
    Case(
        "e2e within the timeout",
        "spec.sla.e2e.p99",
        sla(e2e="60s"),
        sla(e2e="61s"),
        "a request is ended by then",
    ),
    Case(
        "the batch lane's e2e within the timeout",
        "spec.lanes.batch.sla.e2e.p99",
        {"lanes": {"batch": sla(e2e="60s")}},
        {"lanes": {"batch": sla(e2e="61s")}},
        "a request is ended by then",
    ),
    Case(
        "batch min within max",
        "spec.tuning.batchSize.max",
        _tuning(batchSize={"min": 8, "max": 8}),
        _tuning(batchSize={"min": 9, "max": 8}),
    ),
    Case(
        "batch initial above min",
        "spec.tuning.batchSize.initial",
        _tuning(batchSize={"min": 4, "initial": 4}),
        _tuning(batchSize={"min": 4, "initial": 3}),
    ),
    Case(
        "token initial below max",
        "spec.tuning.tokenBudget.initial",
        _tuning(tokenBudget={"max": 512, "initial": 512}, batchSize={"max": 64}),
        _tuning(tokenBudget={"max": 512, "initial": 513}, batchSize={"max": 64}),
    ),
    Case(
        "token min within max",
        "spec.tuning.tokenBudget.max",
        _tuning(tokenBudget={"min": 128, "max": 128}),
        _tuning(tokenBudget={"min": 129, "max": 128}),
    ),
    Case(
        "a step holds every row",
        "spec.tuning.tokenBudget.max",
        _tuning(batchSize={"max": 128}, tokenBudget={"max": 128}),
        _tuning(batchSize={"max": 129}, tokenBudget={"max": 128}),
    ),
    Case(
        "capacity holds every row",
        "spec.engine.capacity.maxTokenBudget",
        {"engine": {"capacity": {"maxBatchSize": 64, "maxTokenBudget": 64}}},
        {"engine": {"capacity": {"maxBatchSize": 65, "maxTokenBudget": 64}}},
    ),
    Case(
        "batch max within capacity",
        "spec.tuning.batchSize",
        _tuning(batchSize={"max": 256}),
        _tuning(batchSize={"max": 257}),
        "engine.capacity.maxBatchSize",
    ),
    Case(
        "batch initial within capacity",
        "spec.tuning.batchSize",
        _tuning(batchSize={"initial": 256}),
        _tuning(batchSize={"initial": 257}),
        "engine.capacity.maxBatchSize",
    ),
    Case(
        "batch min within capacity",
        "spec.tuning.batchSize",
        _tuning(batchSize={"min": 256}),
        _tuning(batchSize={"min": 257}),
        "engine.capacity.maxBatchSize",
    ),
    Case(
        "token max within capacity",
        "spec.tuning.tokenBudget",
        _tuning(tokenBudget={"max": 8192}),
        _tuning(tokenBudget={"max": 8193}),
        "engine.capacity.maxTokenBudget",
    ),
    Case(
        "interval in range",
        "spec.tuning.interval",
        _tuning(interval="1s"),
        _tuning(interval="2m"),
    ),
    Case("window in range", "spec.tuning.window", _tuning(window="1h"), _tuning(window="5s")),
    Case(
        "timeout in range",
        "spec.admission.requestTimeout",
        {"admission": {"requestTimeout": "10m"}},
        {"admission": {"requestTimeout": "2h"}},
    ),
    Case(
        "a rollout can replace",
        "spec.rollout.maxUnavailable",
        {"rollout": {"maxSurge": 0, "maxUnavailable": 1}},
        {"rollout": {"maxSurge": "0%", "maxUnavailable": 0}},
        "nothing could be replaced",
    ),
    Case(
        "a rollout can replace, in percent",
        "spec.rollout.maxUnavailable",
        {"rollout": {"maxSurge": "0%", "maxUnavailable": "25%"}},
        {"rollout": {"maxSurge": 0, "maxUnavailable": "0%"}},
    ),
    Case(
        "a PVC cache names its claim",
        "spec.model.cache.claimName",
        {"model": {"uri": "builtin://x", "cache": {"type": "PVC", "claimName": "weights"}}},
        {"model": {"uri": "builtin://x", "cache": {"type": "PVC"}}},
    ),
    Case(
        "only a PVC cache names a claim",
        "spec.model.cache.claimName",
        {"model": {"uri": "builtin://x", "cache": {"type": "EmptyDir"}}},
        {"model": {"uri": "builtin://x", "cache": {"type": "EmptyDir", "claimName": "weights"}}},
    ),
    Case(
        "Draft names its model",
        "spec.engine.speculative.draftModelUri",
        {"engine": {"speculative": {"method": "Draft", "draftModelUri": "file:///draft"}}},
        {"engine": {"speculative": {"method": "Draft"}}},
    ),
    Case(
        "only Draft names a model",
        "spec.engine.speculative.draftModelUri",
        {"engine": {"speculative": {"method": "NGram"}}},
        {"engine": {"speculative": {"method": "NGram", "draftModelUri": "file:///draft"}}},
    ),
    Case(
        "only Draft quantises a draft",
        "spec.engine.speculative.draftQuantization",
        _draft(
            draftModelRevision="12fd25f77366fa6b3b4b768ec3050bf629380bac", draftQuantization="INT8"
        ),
        {"engine": {"speculative": {"method": "NGram", "draftQuantization": "INT8"}}},
    ),
    Case(
        "a draft from the hub needs a revision",
        "spec.engine.speculative.draftModelRevision",
        _draft(draftModelRevision="12fd25f77366fa6b3b4b768ec3050bf629380bac"),
        _draft(),
        "a commit cannot",
    ),
    Case(
        "each rank has a GPU",
        "spec.resources.gpu.count",
        {"engine": {"tensorParallelSize": 2}, "resources": {"gpu": {"count": 2}}},
        {"engine": {"tensorParallelSize": 2}, "resources": {"gpu": {"count": 1}}},
        "each rank runs on a GPU of its own",
    ),
    Case(
        "each GPU has a rank",
        "spec.resources.gpu.count",
        {"engine": {"tensorParallelSize": 2}, "resources": {"gpu": {"count": 0}}},
        {"resources": {"gpu": {"count": 2}}},
        "must be engine.tensorParallelSize",
    ),
    Case(
        "a claim has one source",
        "spec.resourceClaims[0]",
        _claims(resourceClaimTemplateName="one-gpu"),
        _claims(resourceClaimTemplateName="one-gpu", resourceClaimName="team-gpu"),
        "name one of resourceClaimName and resourceClaimTemplateName",
    ),
    Case(
        "a claim has a source",
        "spec.resourceClaims[0]",
        _claims(resourceClaimName="team-gpu"),
        _claims() | {"resourceClaims": [{"name": "gpu"}]},
        "name one of resourceClaimName and resourceClaimTemplateName",
    ),
    Case(
        "a claim that is used is the pod's",
        "spec.resources.claims",
        _claims(),
        _claims() | {"resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}]},
        "each must have the name of one of resourceClaims",
    ),
    Case(
        "a claim that is used is there",
        "spec.resources.claims",
        _claims(),
        _claims() | {"resourceClaims": None},
        "each must have the name of one of resourceClaims",
    ),
    Case(
        "a claim is named once",
        "spec.resourceClaims[1]",
        _claims(),
        _claims() | {"resourceClaims": [{"name": "gpu", "resourceClaimName": "a"}] * 2},
        "Duplicate value",
    ),
    Case(
        "the GPUs' claim is the engine's",
        "spec.resources.gpu.claim",
        _claims(gpu={"claim": "gpu"}),
        _claims(gpu={"claim": "gpus"}),
        "must be one of resources.claims",
    ),
    Case(
        "a claim brings GPUs",
        "spec.resources.gpu.count",
        _claims(gpu={"claim": "gpu", "count": 1}),
        _claims(gpu={"claim": "gpu", "count": 0}),
        "must be how many GPUs the claim brings",
    ),
    Case(
        "a GPU is claimed or named",
        "spec.resources.gpu.resourceName",
        {"resources": {"gpu": {"resourceName": "nvidia.com/mig-1g.10gb"}}},
        _claims(gpu={"claim": "gpu", "resourceName": "nvidia.com/mig-1g.10gb"}),
        "must be left out beside claim",
    ),
    Case(
        "the KV cache fits beside the engine",
        "spec.engine.kvCacheMemory",
        {
            "engine": {"kvCacheMemory": "1Gi"},
            "resources": {"memory": "2Gi", "gpu": {"count": 0}},
        },
        {
            "engine": {"kvCacheMemory": "2Gi"},
            "resources": {"memory": "2Gi", "gpu": {"count": 0}},
        },
        "must be less than resources.memory on a CPU",
    ),
    Case(
        "that of a GPU has its own memory",
        "spec.engine.kvCacheMemory",
        {"engine": {"kvCacheMemory": "8Gi"}, "resources": {"memory": "4Gi"}},
        {"engine": {"kvCacheMemory": "8 GB"}},
    ),
    Case(
        "nodes are spread over once",
        "spec.scheduling.topologySpread",
        _spread(_HOST | _STRICT, _ZONE, nodes="None"),
        _spread(_HOST | _STRICT, _ZONE),
        "must be None where topologySpreadConstraints",
    ),
    Case(
        "a constraint is there once",
        "spec.scheduling.topologySpreadConstraints[1]",
        _spread(_ZONE, _ZONE | _STRICT),
        _spread(_ZONE, _ZONE),
        "Duplicate value",
    ),
    Case(
        "domains are counted where they bind",
        "spec.scheduling.topologySpreadConstraints[0].minDomains",
        _spread(_ZONE | _STRICT | {"minDomains": 3}),
        _spread(_ZONE | {"minDomains": 3}),
        "needs whenUnsatisfiable: DoNotSchedule",
    ),
    Case(
        "ranks do not swap",
        "spec.engine.swapMemory",
        {"engine": {"swapMemory": "1Gi"}},
        {
            "engine": {"swapMemory": "1Gi", "tensorParallelSize": 2},
            "resources": {"gpu": {"count": 2}},
        },
        "live on one rank",
    ),
    Case(
        "only dynamic batches wait",
        "spec.engine.dynamic",
        {"engine": {"scheduling": "Dynamic", "dynamic": {"maxWait": "1s"}}},
        {"engine": {"scheduling": "Static", "dynamic": {"maxWait": "1s"}}},
        "only Dynamic scheduling gathers batches so",
    ),
    Case(
        "only dynamic batches have buckets",
        "spec.engine.dynamic",
        {"engine": {"dynamic": {"maxWait": "100ms", "buckets": True}}},
        {"engine": {"dynamic": {"buckets": False}}},
        "only Dynamic scheduling gathers batches so",
    ),
    Case(
        "a batch does not gather for ever",
        "spec.engine.dynamic.maxWait",
        {"engine": {"scheduling": "Dynamic", "dynamic": {"maxWait": "1m"}}},
        {"engine": {"scheduling": "Dynamic", "dynamic": {"maxWait": "61s"}}},
        "must lie between 0s and 60s",
    ),
    Case(
        "what is swapped fits beside the engine",
        "spec.engine.swapMemory",
        {"engine": {"swapMemory": "1023Mi"}, "resources": {"memory": "1Gi"}},
        {"engine": {"swapMemory": "1024Mi"}, "resources": {"memory": "1Gi"}},
        "must be less than resources.memory",
    ),
    Case(
        "exclusive CPUs are whole",
        "spec.resources.cpu",
        {"resources": {"exclusiveCpus": True, "cpu": 4, "memory": "8Gi"}},
        {"resources": {"exclusiveCpus": True, "cpu": "4500m", "memory": "8Gi"}},
        "must be a whole number",
    ),
    Case(
        "exclusive CPUs are asked for",
        "spec.resources.cpu",
        {"resources": {"exclusiveCpus": True, "cpu": "4", "memory": "8Gi"}},
        {"resources": {"exclusiveCpus": True, "memory": "8Gi"}},
        "must be a whole number",
    ),
    Case(
        "exclusive CPUs need memory's limit",
        "spec.resources.memory",
        {"resources": {"exclusiveCpus": True, "cpu": 4, "memory": "8Gi"}},
        {"resources": {"exclusiveCpus": True, "cpu": 4}},
        "is needed by exclusiveCpus",
    ),
    Case(
        "products of FP8 give bfloat16",
        "spec.engine.dtype",
        {
            "engine": {"quantization": "FP8Dynamic", "dtype": "BFloat16"},
            "resources": {"gpu": {"count": 1}},
        },
        {
            "engine": {"quantization": "FP8Dynamic", "dtype": "Float16"},
            "resources": {"gpu": {"count": 1}},
        },
        "a GPU's products of FP8 give bfloat16",
    ),
    Case(
        "also those of a draft model",
        "spec.engine.dtype",
        _fp8_draft(gpus=0),
        _fp8_draft(gpus=1),
        "must be Auto or BFloat16 beside FP8Dynamic",
    ),
    Case(
        "a file's own blocks are for a CPU",
        "spec.engine.quantization",
        {"engine": {"quantization": "AsStored"}, "resources": {"gpu": {"count": 0}}},
        {"engine": {"quantization": "AsStored"}, "resources": {"gpu": {"count": 1}}},
        "must not be AsStored beside a GPU",
    ),
    Case(
        "also those of a draft's file",
        "spec.engine.speculative.draftQuantization",
        _stored_draft(gpus=0),
        _stored_draft(gpus=1),
        "must not be AsStored beside a GPU",
    ),
    Case(
        "a file's own blocks meet no float16",
        "spec.engine.dtype",
        {
            "engine": {"quantization": "AsStored", "dtype": "BFloat16"},
            "resources": {"gpu": {"count": 0}},
        },
        {
            "engine": {"quantization": "AsStored", "dtype": "Float16"},
            "resources": {"gpu": {"count": 0}},
        },
        "must be Auto, BFloat16 or Float32 beside AsStored",
    ),
    Case(
        "memory may be plain bytes",
        "spec.engine.swapMemory",
        {"engine": {"swapMemory": 999_999}, "resources": {"memory": "1M"}},
        {"engine": {"swapMemory": 1_000_000}, "resources": {"memory": "1M"}},
    ),
    Case(
        "adapters have room",
        "spec.adapters",
        _adapters({"name": "sql", "uri": "file:///a"}, room=1),
        _adapters({"name": "sql", "uri": "file:///a"}, room=0),
        "engine.lora.maxAdapters",
    ),
    Case(
        "an adapter from the hub needs a revision",
        "spec.adapters[0].revision",
        _adapters({"name": "sql", "uri": _HF, "revision": "12fd25f7"}),
        _adapters({"name": "sql", "uri": _HF}),
        "a commit cannot",
    ),
    Case(
        "the claim of adapters is mounted",
        "spec.adapters",
        _adapters({"name": "sql", "uri": "pvc://team/sql"}, claim="team"),
        _adapters({"name": "sql", "uri": "pvc://team2/sql"}, claim="team"),
        "must name the claim of engine.lora.claimName",
    ),
    Case(
        "without a claim there is none",
        "spec.adapters",
        _adapters({"name": "sql", "uri": "file:///adapters/sql"}),
        _adapters({"name": "sql", "uri": "pvc://team/sql"}),
    ),
    Case(
        "an adapter is not the model",
        "spec.adapters",
        _adapters({"name": "chat-sql", "uri": "file:///a"}, served="chat"),
        _adapters({"name": "chat", "uri": "file:///a"}, served="chat"),
        "the name of the model itself",
    ),
    Case(
        "an adapter is named once",
        "spec.adapters[1]",
        _adapters({"name": "sql", "uri": "file:///a"}, {"name": "law", "uri": "file:///a"}),
        _adapters({"name": "sql", "uri": "file:///a"}, {"name": "sql", "uri": "file:///b"}),
        "Duplicate value",
    ),
    Case(
        "an adapter has a known scheme",
        "spec.adapters[0].uri",
        _adapters({"name": "sql", "uri": "file:///a"}),
        _adapters({"name": "sql", "uri": "oci://registry/a"}),
    ),
    Case(
        "ranks have no adapters",
        "spec.engine.lora.maxAdapters",
        {"engine": {"lora": {"maxAdapters": 0}, "tensorParallelSize": 2}} | _TWO_GPUS,
        {"engine": {"lora": {"maxAdapters": 1}, "tensorParallelSize": 2}} | _TWO_GPUS,
        "live on one rank",
    ),
    Case(
        "ranks have no draft model",
        "spec.engine.speculative.method",
        {"engine": {"speculative": {"method": "NGram"}, "tensorParallelSize": 2}} | _TWO_GPUS,
        {
            "engine": {
                "speculative": {"method": "Draft", "draftModelUri": "builtin://x"},
                "tensorParallelSize": 2,
            }
        }
        | _TWO_GPUS,
        "runs on one rank",
    ),
    Case(
        "a scheduling is known",
        "spec.engine.scheduling",
        {"engine": {"scheduling": "Dynamic"}},
        {"engine": {"scheduling": "dynamic"}},
    ),
    Case(
        "shares of lanes add up",
        "spec.lanes.batch.share",
        {"lanes": {"interactive": {"share": "0.7"}, "batch": {"share": "0.3"}}},
        {"lanes": {"interactive": {"share": "0.8"}, "batch": {"share": "0.3"}}},
    ),
    Case(
        "a known scheme",
        "spec.model.uri",
        {"model": {"uri": "pvc://claim/folder"}},
        {"model": {"uri": "ftp://host/model"}},
    ),
    Case(
        "a model is not in S3",
        "spec.model.uri",
        {"model": {"uri": "oci://registry.example/model:1"}},
        {"model": {"uri": "s3://bucket/model"}},
        "s3:// is not served by this version",
    ),
    Case(
        "nor is a draft",
        "spec.engine.speculative.draftModelUri",
        {"engine": {"speculative": {"method": "Draft", "draftModelUri": "pvc://claim/draft"}}},
        {"engine": {"speculative": {"method": "Draft", "draftModelUri": "s3://bucket/draft"}}},
        "s3:// is not served by this version",
    ),
    Case(
        "the operator's own variables are fields",
        "spec.podOverrides.env[0].name",
        _overrides(env=[{"name": "NCCL_DEBUG", "value": "INFO"}]),
        _overrides(env=[{"name": "PACELINE_ENGINE_DTYPE", "value": "float32"}]),
        "is set by the operator",
    ),
    Case(
        "the hub's token is a Secret",
        "spec.podOverrides.env[0].name",
        _overrides(env=[{"name": "HF_ENDPOINT", "value": "https://mirror"}]),
        _overrides(env=[{"name": "HF_TOKEN", "value": "hf_abc"}]),
        "model.credentialsSecretRef behind HF_TOKEN",
    ),
    Case(
        "a variable has a name",
        "spec.podOverrides.env[0].name",
        _overrides(env=[{"name": "HTTPS_PROXY", "value": ""}]),
        _overrides(env=[{"name": "HTTPS-PROXY", "value": ""}]),
    ),
    Case(
        "the sidecar's variables are OpenTelemetry's",
        "spec.podOverrides.sidecarEnv[0].name",
        _overrides(sidecarEnv=[{"name": "OTEL_SDK_DISABLED", "value": "true"}]),
        _overrides(sidecarEnv=[{"name": "PYTHONPATH", "value": "/tmp"}]),
    ),
    Case(
        "a variable is named once",
        "spec.podOverrides.env[1]",
        _overrides(env=[{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]),
        _overrides(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
        "Duplicate value",
    ),
    Case(
        "a volume has one source",
        "spec.podOverrides.volumes[0]",
        _overrides(volumes=[{"name": "ca", "configMapName": "ca"}]),
        _overrides(volumes=[{"name": "ca", "configMapName": "ca", "secretName": "ca"}]),
        "name one of claimName, configMapName and secretName",
    ),
    Case(
        "a volume has a source",
        "spec.podOverrides.volumes[0]",
        _overrides(volumes=[{"name": "ca", "claimName": "ca"}]),
        _overrides(volumes=[{"name": "ca"}]),
        "name one of claimName, configMapName and secretName",
    ),
    Case(
        "a volume's name is a folder's",
        "spec.podOverrides.volumes[0].name",
        _overrides(volumes=[{"name": "c-a", "secretName": "ca"}]),
        _overrides(volumes=[{"name": "../ca", "secretName": "ca"}]),
    ),
    Case(
        "an address is one",
        "spec.podOverrides.hostAliases[0].ip",
        _overrides(hostAliases=[{"ip": "fd00::1", "hostnames": ["nas"]}]),
        _overrides(hostAliases=[{"ip": "nas", "hostnames": ["nas"]}]),
    ),
    Case(
        "resolv.conf has three name servers",
        "spec.podOverrides.dnsConfig.nameservers",
        _overrides(dnsConfig={"nameservers": ["10.0.0.1", "10.0.0.2", "10.0.0.3"]}),
        _overrides(dnsConfig={"nameservers": ["10.0.0.1"] * 4}),
    ),
    Case(
        "no pod is in root's group",
        "spec.podOverrides.supplementalGroups[0]",
        _overrides(supplementalGroups=[1]),
        _overrides(supplementalGroups=[0]),
    ),
    Case(
        "a pod's spec is not passed through",
        "spec.podOverrides.hostNetwork",
        _overrides(),
        _overrides(hostNetwork=True),
    ),
    Case(
        "a pull secret is named once",
        "spec.imagePullSecrets[1]",
        {"imagePullSecrets": [{"name": "a"}, {"name": "b"}]},
        {"imagePullSecrets": [{"name": "a"}, {"name": "a"}]},
        "Duplicate value",
    ),
    Case(
        "the sidecar's memory is a quantity",
        "spec.sidecar.resources.memory",
        {"sidecar": {"resources": {"memory": "512Mi", "cpu": 1}}},
        {"sidecar": {"resources": {"memory": "enough"}}},
    ),
    Case(
        "a cache is not the host's",
        "spec.model.cache.type",
        {"model": {"uri": "builtin://x", "cache": {"type": "PVC", "claimName": "cache"}}},
        {"model": {"uri": "builtin://x", "cache": {"type": "HostPath"}}},
        "must be EmptyDir or PVC",
    ),
    Case("a model is named", "spec.model.uri", {}, {"model": {}}),
    Case("a latency has a unit", "spec.sla.ttft.p99", sla(ttft="1.5s"), sla(ttft="500")),
    Case("replicas are a number", "spec.replicas", {"replicas": 0}, {"replicas": -1}),
    Case(
        "an objective leaves a budget",
        "spec.sla.objective",
        {"sla": _TARGETS | {"objective": "0.999"}},
        {"sla": _TARGETS | {"objective": "1"}},
    ),
    Case(
        "a quantity is one",
        "spec.resources.memory",
        {"resources": {"memory": "16Gi", "cpu": 4}},
        {"resources": {"memory": "much"}},
    ),
    Case(
        "a candidate changes something",
        "spec.tuning.experiment.policy",
        _experiment({"mode": "Observe"}),
        _tuning(experiment={"name": "one", "policy": {}}),
        "at least one of",
    ),
    Case(
        "a step margin is near one",
        "spec.tuning.experiment.policy.stepMargin",
        _experiment({"stepMargin": "1.1"}),
        _experiment({"stepMargin": "1.11"}),
    ),
    Case(
        "a declared step margin is near one",
        "spec.tuning.stepMargin",
        _tuning(stepMargin="0.9"),
        _tuning(stepMargin="0.89"),
    ),
    Case(
        "a candidate's bounds are named",
        "spec.tuning.experiment.policy.batchSize",
        _experiment({"batchSize": {"max": 8}}),
        _experiment({"batchSize": {}}),
        "name min, max or both",
    ),
    Case(
        "a candidate's batch min within max",
        "spec.tuning.experiment.policy.batchSize.max",
        _experiment({"batchSize": {"min": 8, "max": 8}}),
        _experiment({"batchSize": {"min": 9, "max": 8}}),
    ),
    Case(
        "a candidate's token min within max",
        "spec.tuning.experiment.policy.tokenBudget.max",
        _experiment({"tokenBudget": {"min": 256, "max": 256}}),
        _experiment({"tokenBudget": {"min": 257, "max": 256}}),
    ),
    Case(
        "an experiment takes a minute",
        "spec.tuning.experiment.minDuration",
        _experiment(minDuration="1m"),
        _experiment(minDuration="59s"),
    ),
    Case(
        "an experiment ends within a week",
        "spec.tuning.experiment.maxDuration",
        _experiment(maxDuration="168h"),
        _experiment(maxDuration="169h"),
    ),
    Case(
        "an experiment's least time is within its most",
        "spec.tuning.experiment.maxDuration",
        _experiment(minDuration="10m", maxDuration="10m"),
        _experiment(minDuration="11m", maxDuration="10m"),
        "must not be below minDuration",
    ),
    Case(
        "both arms get pods",
        "spec.tuning.experiment.share",
        _experiment(kind="AB", share="0.9"),
        _experiment(kind="AB", share="0.95"),
    ),
    Case(
        "an experiment has an SLA to miss",
        "spec.sla",
        _experiment(),
        {"sla": None, "tuning": {"mode": "Fixed"} | _experiment()["tuning"]},
        "compares misses",
    ),
    Case(
        "a block of addresses has no labels",
        "spec.network.allowFrom[0].cidr",
        {"network": {"allowFrom": [{"cidr": "192.0.2.0/24"}, {"podLabels": {"app": "ui"}}]}},
        {"network": {"allowFrom": [{"cidr": "192.0.2.0/24", "podLabels": {"app": "ui"}}]}},
        "cidr stands alone",
    ),
    Case(
        "a name is verified by an authority",
        "spec.api.tls.serverName",
        {"api": {"tls": _CERT | {"caBundle": _PEM, "serverName": "chat.example"}}},
        {"api": {"tls": _CERT | {"serverName": "chat.example"}}},
        "it needs one",
    ),
    Case(
        "an authority is in PEM",
        "spec.api.tls.caBundle",
        {"api": {"tls": _CERT | {"caBundle": f"{_PEM}\n"}}},
        {"api": {"tls": _CERT | {"caBundle": "MIIB"}}},
    ),
    Case("no field is unknown", "spec.sla.ttfb", {}, {"sla": _TARGETS | {"ttfb": {"p99": "1s"}}}),
)


def passing(case: Case) -> dict[str, Any]:
    """The manifest that is taken."""
    return a_manifest(**case.passing)


def failing(case: Case) -> dict[str, Any]:
    """The manifest that is refused."""
    return a_manifest(**case.failing)
