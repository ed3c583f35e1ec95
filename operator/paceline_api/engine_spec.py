"""`spec.engine`: how the engine is started, and with what capacity."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from paceline_api.model_spec import ModelUri, Revision
from paceline_api.part import Part, Rule, between
from paceline_api.units import Duration, Fraction, Name, Quantity

WeightsIn = Literal["None", "AsStored", "FP8", "FP8Dynamic", "INT8"]


class SpeculativeSpec(Part):
    """Speculative decoding: draft tokens that one step verifies."""

    cel_rules: ClassVar = (
        Rule(
            "(self.method == 'Draft') == has(self.draftModelUri)",
            "draftModelUri is needed by method Draft, and only by it",
            ".draftModelUri",
        ),
        Rule(
            "!has(self.draftQuantization) || self.method == 'Draft'",
            "only method Draft has a model to quantise",
            ".draftQuantization",
        ),
        Rule(
            "!has(self.draftModelUri) || !self.draftModelUri.startsWith('hf://') ||"
            " has(self.draftModelRevision)",
            "an hf:// draft model needs a revision: a branch can move, a commit cannot",
            ".draftModelRevision",
            is_required=True,
        ),
        Rule(
            "!has(self.draftModelUri) || !self.draftModelUri.startsWith('s3://')",
            "s3:// is not served by this version: copy the model to a volume (pvc://), or into an"
            " image (oci://)",
            ".draftModelUri",
        ),
    )

    method: Literal["None", "NGram", "Draft"] = "None"
    """NGram proposes what followed the same tokens earlier in the sequence, Draft asks a smaller
    model."""
    draft_model_uri: ModelUri | None = None
    """A smaller model with the same vocabulary, by a URI like that of `model.uri`."""
    draft_model_revision: Revision | None = None
    """The commit of an hf:// draft model."""
    draft_quantization: WeightsIn | None = None
    """How the draft model's layers and head are stored; when absent, its layers as
    `engine.quantization` says. On a CPU a model in INT8 drafts well for itself: `draftModelUri` is
    then `model.uri`."""
    max_tokens: Annotated[int, Field(ge=1, le=16)] = 4
    """Draft tokens per step and sequence."""


class LoraSpec(Part):
    """Memory for LoRA adapters, taken at start; `spec.adapters` names the adapters."""

    max_adapters: Annotated[int, Field(ge=0, le=64)] = 0
    """Adapters at a time; 0 takes no memory, and no adapter can be loaded."""
    max_rank: Annotated[int, Field(ge=1, le=512)] = 16
    """Highest rank of an adapter."""
    claim_name: Name | None = None
    """A PersistentVolumeClaim that holds adapters; the engine reads it."""


class CapacitySpec(Part):
    """What is allocated at start; the live limits move below it."""

    cel_rules: ClassVar = (
        Rule(
            "self.maxTokenBudget >= self.maxBatchSize",
            "must be at least maxBatchSize: a step holds one token per running sequence",
            ".maxTokenBudget",
        ),
    )

    max_batch_size: Annotated[int, Field(ge=1, le=4096)] = 256
    """Running sequences, at most."""
    max_token_budget: Annotated[int, Field(ge=16, le=262_144)] = 8192
    """Tokens in one step, at most."""


class DynamicSpec(Part):
    """How a batch of Dynamic scheduling is gathered."""

    cel_rules: ClassVar = (between("maxWait", "0s", "60s"),)

    max_wait: Duration = "100ms"
    """The longest that the first request of a batch waits for a whole batch."""
    buckets: bool = True
    """Whether a batch holds prompts of about equal length, up to the same power of two: less
    padding, for more waiting."""


class EngineSpec(Part):
    """How the engine is started."""

    cel_rules: ClassVar = (
        Rule(
            "self.tensorParallelSize == 1 || !has(self.swapMemory)",
            "blocks in host memory live on one rank: not with tensorParallelSize above 1",
            ".swapMemory",
        ),
        Rule(
            "self.tensorParallelSize == 1 || self.lora.maxAdapters == 0",
            "adapters live on one rank: not with tensorParallelSize above 1",
            ".lora.maxAdapters",
        ),
        Rule(
            "self.tensorParallelSize == 1 || self.speculative.method != 'Draft'",
            "a draft model runs on one rank: not with tensorParallelSize above 1",
            ".speculative.method",
        ),
        Rule(
            "self.scheduling == 'Dynamic' ||"
            " (duration(self.dynamic.maxWait) == duration('100ms') && self.dynamic.buckets)",
            "only Dynamic scheduling gathers batches so: set scheduling to Dynamic, or leave"
            " dynamic out",
            ".dynamic",
        ),
    )

    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """When absent, the operator's own when the service was made; see `rollout.imagePolicy`."""
    dtype: Literal["Auto", "Float16", "BFloat16", "Float32"] = "Auto"
    """Auto: BFloat16 on a GPU; on a CPU what it measures to be faster at start, BFloat16 or
    Float32, and never INT8. The engine's log and `info` of the runtime API say which, and why."""
    quantization: WeightsIn = "None"
    """How the layers' weights are stored, with a scale for each output; embedding and head stay as
    they are.
    FP8Dynamic makes FP8 of what they multiply as well, with a scale for each token, and multiplies
    in FP8: what vLLM calls fp8, and less exact than FP8. Both need a GPU of compute capability 8.9
    or newer.
    AsStored keeps all weights of a GGUF file in the file's own quantised kinds, embedding and head
    too, and makes bytes of what they multiply, with a scale for each 32; on a CPU only."""
    max_model_len: Annotated[int, Field(ge=16, le=10_485_760)] | None = None
    """Longest prompt and answer together, in tokens; the model's own when absent."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=8)] = 1
    """GPUs, or with `resources.gpu.count` 0 processes, that share the layers of one model. It must
    divide the model's heads."""
    kv_cache_memory_fraction: Fraction = "0.90"
    """Share of the GPU's memory that weights and KV cache may take, with all that others have there
    already."""
    kv_cache_memory: Quantity | None = None
    """Memory of the KV cache, such as `8Gi`, instead of what `kvCacheMemoryFraction` leaves: where
    pods share a GPU, each takes a part that does not depend on who came first. On a CPU it is part
    of `resources.memory`, and when absent what the fraction leaves of that, at most 1Gi."""
    kv_cache_dtype: Literal["Auto", "FP8"] = "Auto"
    """FP8 holds nearly twice the tokens of 16 bits. A GPU must be of compute capability 8.9 or
    newer."""
    prefix_caching: bool = True
    """Share the KV blocks of equal prompt beginnings; Continuous scheduling only."""
    scheduling: Literal["Continuous", "Dynamic", "Static"] = "Continuous"
    """Continuous lets requests join and leave a batch at each step. Dynamic and Static batches are
    padded and run until all of their requests have ended, for comparison: Static takes whoever
    waits, Dynamic waits for a whole batch, as `dynamic` says."""
    dynamic: DynamicSpec = DynamicSpec()
    swap_memory: Quantity | None = None
    """Host memory for KV blocks of preempted requests, such as `8Gi`: they are copied there and
    back where that is cheaper than computing them again. Part of `resources.memory`."""
    lora: LoraSpec = LoraSpec()
    speculative: SpeculativeSpec = SpeculativeSpec()
    capacity: CapacitySpec = CapacitySpec()
