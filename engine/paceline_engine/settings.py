"""The engine's settings: environment variables, read once in `__main__` (docs/processes.md)."""

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from paceline_engine.errors import BadSettings
from paceline_engine.hardware.cores import PinSetting
from paceline_engine.hardware.devices import BLOCK_TOKENS
from paceline_engine.scheduling import Scheduling

_PREFIX = "PACELINE_ENGINE_"


Quantization = Literal["none", "int8", "fp8", "fp8_dynamic", "as_stored"]
KvCacheDtype = Literal["auto", "fp8"]
PrefillSetting = Literal["auto", "triton", "sdpa"]
RowProductSetting = Literal["auto", "on", "off"]


class Settings(BaseSettings):
    """One engine process. Each field is the variable `PACELINE_ENGINE_<FIELD>`.

    The docstring of a field is its row of docs/processes.md, and links from there.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        protected_namespaces=(),
    )

    run_dir: Path = Path("/run/paceline")
    """Shared with the sidecar, in memory: the socket and the tokenizer's files."""
    model_uri: str = "builtin://smollm2-135m-instruct"
    """`builtin://`, `file://`, `pvc://`, `oci://` or `hf://`."""
    model_revision: str | None = None
    """Commit, tag or branch of an `hf://` model."""
    model_mount: Path = Path("/model")
    """Where `oci://` and `pvc://` volumes are mounted; `pvc://CLAIM/SUB/PATH` is
    `MOUNT/SUB/PATH`."""
    models_dir: Path | None = None
    """Where `builtin://NAME` is looked up before installed packages: a folder `NAME` or a file
    `NAME.gguf`."""
    cache_dir: Path = Path("/cache")
    """Where `hf://` downloads go."""
    hf_token: str | None = Field(default=None, validation_alias="HF_TOKEN", repr=False)
    """Credentials for `hf://`."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`cpu`, `cuda`, or `auto`, which refuses a GPU that cannot serve rather than leaving it
    idle."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Type of activations, and of weights that nothing quantises: `float32`, `float16`, `bfloat16`,
    or `auto`.

    `auto` is bfloat16 on a GPU, and on a CPU what measures faster at start: see
    [the type](cpu.md#the-type).
    """
    quantization: Quantization = "none"
    """Weights of the layers' products: `none` (as the dtype), `int8`, `fp8`, `fp8_dynamic` or
    `as_stored`: see [Quantization](#quantization)."""
    kv_cache_dtype: KvCacheDtype = "auto"
    """Keys and values: `auto` (as the dtype), or `fp8` with an exponent for each head of a token:
    see [Quantization](#quantization)."""
    prefill_attention: PrefillSetting = "auto"
    """Prefill attention on a GPU: `triton` (our kernel), `sdpa` (torch's attention where it serves
    and is right), or `auto`, which times both at start: see
    [Prefill attention](#prefill-attention)."""
    row_products: RowProductSetting = "auto"
    """Products of up to 128 decodes with norm, gate and residual inside, in place of cuBLAS's, on a
    GPU with CUDA graphs and weights of 16 bits: `on`, `off`, or `auto`, which times both at start,
    by batch size."""
    threads: int = Field(default=0, ge=0)
    """Threads of each rank on a CPU; 0 is as many as the container was given cores, shared by the
    ranks: see [threads](cpu.md#threads)."""
    cpus: float | None = Field(default=None, gt=0)
    """CPUs that the pod asked for: bounds the threads where its cgroup has no quota."""
    pin_threads: PinSetting = "auto"
    """Pin each thread on a CPU to a core of its own: `on`, `off`, or `auto`, which means where the
    container has its CPUs to itself."""

    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    """GPUs, or on a CPU processes, that share the layers; it must divide the heads. Not with LoRA
    or swapping."""
    max_loras: int = Field(default=0, ge=0, le=256)
    """LoRA adapters at a time, whose memory is taken at start; 0 has none, and takes none."""
    max_lora_rank: int = Field(default=16, ge=1, le=512)
    """Highest rank of an adapter."""

    max_model_len: int | None = Field(default=None, ge=1)
    """Longest sequence in tokens."""
    max_batch_size: int = Field(default=256, ge=1)
    """Capacity: running sequences."""
    max_token_budget: int = Field(default=8192, ge=1)
    """Capacity: tokens in one step."""
    block_size: int = Field(default=BLOCK_TOKENS, ge=1)
    """Tokens in one KV block."""
    kv_cache_memory_fraction: float = Field(default=0.90, gt=0, le=1)
    """Share of the GPU's memory, or on a CPU of the container's, for all that the engine holds; the
    KV cache has [what is measured to be left](gpu.md#how-large-the-kv-cache-becomes)."""
    kv_cache_bytes: int | None = Field(default=None, ge=1)
    """Overrides the fraction; refused on a GPU where it does not fit beside what was measured."""
    prefix_caching: bool = True
    """Take the KV blocks of a prompt's beginning from an earlier request that began alike."""
    scheduling: Scheduling = "continuous"
    """`continuous`, or `dynamic` or `static`: padded batches that run until all of their requests
    have ended. `python -m paceline_engine --scheduling` overrides it."""
    dynamic_max_wait_s: float = Field(default=0.1, ge=0)
    """The longest that the first request of a `dynamic` batch waits for others, seconds."""
    dynamic_buckets: bool = True
    """Whether a `dynamic` batch holds prompts of about equal length; `false` mixes them."""
    swap_bytes: int = Field(default=0, ge=0)
    """Host memory (pinned beside a GPU) for KV blocks of preempted requests; with 0 they are
    computed again."""
    speculative: Literal["none", "ngram", "draft"] = "none"
    """Speculative decoding: draft tokens that a step verifies, where the step model says it pays.

    `ngram` looks them up in the sequence itself, `draft` asks a second model.
    """
    draft_model_uri: str | None = None
    """A smaller model with the same vocabulary, by a URI as the model's; needed by `draft`, and
    only by it; not with tensor parallelism."""
    draft_model_revision: str | None = None
    """Commit, tag or branch of an `hf://` draft model."""
    draft_model_mount: Path = Path("/draft-model")
    """Where the draft model's `oci://` or `pvc://` volume is mounted."""
    draft_quantization: Quantization | None = None
    """The values of `PACELINE_ENGINE_QUANTIZATION`, for the draft model's layers and head; when
    absent, its layers follow that one."""
    speculative_tokens: int = Field(default=4, ge=1, le=16)
    """Draft tokens per step and sequence, at most; 1 to 16. Tokens that a grammar forces are
    drafted with `none` too, up to 16, and do not count."""

    overlap: Literal["auto", "on", "off"] = "auto"
    """Schedule a step while the one before runs, which hides the host's time behind a GPU's: `on`,
    `off`, or `auto`, which means beside a GPU; with `continuous` scheduling and no speculative
    decoding.

    On a CPU both share the cores, and a request that arrives would only wait for one long step
    more.
    """

    graphs: Literal["auto", "on", "off"] = "auto"
    """CUDA graphs: `on`, `off`, or `auto`, which means beside a GPU: see
    [CUDA graphs](#cuda-graphs)."""

    dependent_launches: Literal["on", "off"] = "off"
    """Programmatic dependent launch of our kernels, on GPUs from compute capability 9.0 on: `on` or
    `off` ([what it is, and why it is
    off](decisions/0084-dependent-launches-wait-before-all-else.md))."""

    initial_batch_size: int | None = Field(default=None, ge=1)
    """Limit until the first change."""
    initial_token_budget: int | None = Field(default=None, ge=1)
    """Limit until the first change."""
    profile_s: float | None = Field(default=None, ge=0, le=600)
    """Seconds at start for measuring steps of many sizes, which the step model begins with; 0
    measures none. On a CPU so many steps would take as long as the whole start."""
    drain_s: float = Field(default=120.0, ge=0)
    """After SIGTERM, requests in flight get this long to finish, seconds."""
    step_timeout_s: float = Field(default=8.0, ge=0)
    """A step that takes longer, and ten times longer than predicted, counts as hung: the process
    ends with reason `StepHung`. Time without a core does not count ([decision
    61](decisions/0061-a-hang-is-told-from-a-slow-step.md)); on a CPU nothing of the process may
    sleep for so long in a step. 0 waits for ever."""
    termination_log: Path = Path("/dev/termination-log")
    """One JSON line `{"reason": …, "message": …}` goes here when it exits for a reason that a
    person can act on."""

    @model_validator(mode="after")
    def _ranks_exclude_loras_and_swap(self) -> "Settings":
        for name in ("max_loras", "swap_bytes"):
            if self.tensor_parallel_size > 1 and getattr(self, name):
                raise ValueError(
                    f"{name} must be 0 with a tensor_parallel_size above 1, "
                    f"got {getattr(self, name)}"
                )
        return self

    @model_validator(mode="after")
    def _sdpa_excludes_fp8_kv(self) -> "Settings":
        if self.prefill_attention == "sdpa" and self.kv_cache_dtype == "fp8":
            raise ValueError(
                "prefill_attention must be auto or triton where kv_cache_dtype is fp8, "
                f"got {self.prefill_attention}"
            )
        return self

    @model_validator(mode="after")
    def _as_stored_excludes_float16(self) -> "Settings":
        for name in ("quantization", "draft_quantization"):
            if getattr(self, name) == "as_stored" and self.dtype == "float16":
                raise ValueError(
                    f"dtype must be auto, float32 or bfloat16 where {name} is as_stored, "
                    f"got {self.dtype}"
                )
        return self

    @property
    def quantization_of_draft(self) -> Quantization:
        """Return how the draft model's layers are quantised."""
        return self.quantization if self.draft_quantization is None else self.draft_quantization

    @property
    def can_overlap(self) -> bool:
        """Whether a step can be chosen before the one before has given its tokens."""
        return self.scheduling == "continuous" and self.speculative == "none"

    @model_validator(mode="after")
    def _overlap_needs_continuous_scheduling(self) -> "Settings":
        if self.overlap == "on" and not self.can_overlap:
            raise ValueError(
                "overlap must be off or auto unless scheduling is continuous and speculative is "
                f"none, got {self.overlap}"
            )
        return self

    @model_validator(mode="after")
    def _draft_settings_agree(self) -> "Settings":
        is_draft = self.speculative == "draft"
        if is_draft and self.draft_model_uri is None:
            raise ValueError("draft_model_uri must be set where speculative is draft, got none")
        for name in ("draft_model_uri", "draft_model_revision", "draft_quantization"):
            if not is_draft and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} is for speculative draft alone, got {getattr(self, name)!r} "
                    f"with {self.speculative}"
                )
        if is_draft and self.tensor_parallel_size > 1:
            raise ValueError(
                "tensor_parallel_size must be 1 where speculative is draft, "
                f"got {self.tensor_parallel_size}"
            )
        return self

    @model_validator(mode="after")
    def _rows_fit_in_a_step(self) -> "Settings":
        if self.max_token_budget < self.max_batch_size:
            raise ValueError(
                f"max_token_budget must be at least max_batch_size ({self.max_batch_size}),"
                f" one token for each row, got {self.max_token_budget}"
            )
        return self


def read_settings(*, scheduling: Scheduling | None = None) -> Settings:
    """Read the environment, or raise `BadSettings` that names each wrong variable and its rule.

    The command line takes precedence over the environment.
    """
    try:
        return Settings() if scheduling is None else Settings(scheduling=scheduling)
    except ValidationError as error:
        raise BadSettings("; ".join(_sentences(error))) from error


def _sentences(error: ValidationError) -> list[str]:
    sentences = []
    for problem in error.errors():
        field = str(problem["loc"][0]) if problem["loc"] else ""
        rule = problem["msg"].removeprefix("Value error, ")
        if not field:
            sentences.append(rule)
            continue
        name = field if field.isupper() else f"{_PREFIX}{field.upper()}"
        sentences.append(f"{name}: {rule}, got {problem['input']!r}")
    return sentences
