"""How the figures are called that a target speaks of: one place for who measures and who judges."""

MODELS = ("qwen2.5-0.5b", "qwen3-0.6b", "llama-3.2-1b", "qwen3-4b", "llama-3.1-8b")
KERNEL_MODEL = "llama-3.1-8b"
"""Whose kernels the targets are for."""
DECODE_LABELS = (
    "1 x 32k",
    "16 x 8k",
    "64 x 1k",
    "256 x 1k",
    "16 x 8k skewed",
    "64 x 1k skewed",
    "256 x 1k skewed",
)
POINTWISE = (
    *("add_rms_norm", "add_rms_norm_fp8", "embed_rms_norm"),
    *("silu_mul", "silu_mul_fp8", "gelu_tanh_mul"),
    *("rope_and_store_kv", "quantize_rows"),
)
"""The fused ones that memory alone limits."""

SAMPLING_CUTS = ("whole", "top-k 50", "top-p 0.9")

WRONG = "kernels that disagree with float64"
FAILED = "failed tests of the kernels"
PARITY = "tokens that differ from transformers"
LOST = "tokens lost while limits change"
LEAKED = "blocks leaked while limits change"


def tests_of(file: str) -> str:
    """Name a number of tests that passed; the file from the repository's root."""
    return f"tests of {file}"


def decode(label: str, model: str = KERNEL_MODEL) -> str:
    """Name a share of copy bandwidth; rows and context."""
    return f"decode attention, {model}, {label}"


def pointwise(kernel: str, model: str = KERNEL_MODEL) -> str:
    """Name a share of copy bandwidth."""
    return f"{kernel}, {model}"


def sampling(cut: str, model: str = KERNEL_MODEL) -> str:
    """Name a share of copy bandwidth; what cuts the rows."""
    return f"sampling, {model}, {cut}"


def fp8_product(num_tokens: int, model: str = KERNEL_MODEL) -> str:
    """Name a share of copy bandwidth for few tokens, a rate for many."""
    return f"product of FP8 with FP8, {model}, {num_tokens} tokens"


def prefill(label: str, model: str = KERNEL_MODEL) -> str:
    """Name a rate; tokens of one prompt."""
    return f"prefill attention, {model}, {label}"


def prefill_by_sdpa(label: str, model: str = KERNEL_MODEL) -> str:
    """Name a rate of torch's attention; as `prefill`."""
    return prefill(f"{label}, by sdpa", model)


PREFILL_8K = prefill("8k, by whichever is fastest")
PREFILL_8K_BY = (prefill("8k"), prefill_by_sdpa("8k"))


def step(model: str) -> str:
    """Name a step's time."""
    return f"step at batch 64, context 1k, {model}"


def dependent_step(model: str) -> str:
    """Name the same step's time, with the kernels' launches the other way."""
    return f"{step(model)}, with dependent launches"


def parity(family: str) -> str:
    """Name a number of tokens; transformers' name of a family."""
    return f"{PARITY}, {family}"


def idle(model: str) -> str:
    """Name the time in which nothing runs."""
    return f"GPU idle between decode steps, {model}"


def single(model: str) -> str:
    """Name the time of one token of one request."""
    return f"single stream, per token, {model}"


THROUGHPUT_MODELS = ("qwen3-0.6b", "llama-3.1-8b")
"""Those that are asked the whole benchmark."""


def mixed(model: str, way: str) -> str:
    """Name a step's time; the way that it is computed."""
    return f"step of 32 decodes at context 1k beside a chunk of 256, {way}, {model}"


BESIDE_MODELS = ("qwen3-0.6b", "llama-3.2-1b", "llama-3.1-8b")
"""Those that are measured in turn with a peer."""


def beside(model: str, engine: str) -> str:
    """Name how many times a peer's rate ours is, both measured in turn."""
    return f"output tokens/s over those of {engine}, {model}"


def throughput(model: str, engine: str = "paceline") -> str:
    """Name a rate over the whole benchmark."""
    return f"256 requests of 100-1024 tokens in and out, {model}, {engine}"
