"""Hardware models: how long a step takes on each, and what disturbs it.

    dense    = table[T]        a decode-only step is padded to a captured graph, a mixed one is not
    context  = C * ms/token * (1 + few/(1 + d/rows)) * (1 + long * C/(C + half))
    pairs    = A * ms/pair * (query tiles * 128 / p)
    t        = dense + mixed + context + pairs + sequences * ms/row

None of it is in the form that the pacer fits (docs/tuner.md): the table has stairs, the context is
bent in the batch and in itself, prefill attention goes up in tiles, and a mixed step costs extra.
Noise is lognormal and correlated from step to step, with rare spikes.

Sources beside those of `dense_table`: 4.37e-5 ms per context token of Llama-3.1-8B on an H100
(vLLM's blog, 2026-04-22), 7.0 ms at batch 1 and 8.7 ms at 64 with 128/128 tokens (llm-d WVA),
4.4 us a request (BLIS), FA3's 430 to 621 TFLOP/s in prefill on an H100. The CPU's figures follow
the laptop of tests/paceline_testing/engine.py: about 28 ms a step and 1.5 ms a prompt token.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paceline_engine.core.model_config import ModelConfig, Rope
from paceline_engine.hardware.devices import BLOCK_TOKENS, GPUS
from paceline_engine.hardware.model_size import ModelSize, Precision, size_of
from paceline_sim.dense_table import Accelerator, dense_table
from paceline_wire import ModelInfo
from paceline_wire.limits import Capacity

MAX_STEP_TOKENS = 32_768


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What a step costs beside its matrix products."""

    context_ms: float
    """Per context token of the decodes, in a large batch of short contexts."""
    few_rows: float
    """How much dearer a context token is in the smallest batch, as a share."""
    rows_scale: float
    """Decodes at which half of that is left."""
    long_context: float
    """How much dearer it gets in the longest contexts, as a share."""
    context_scale: float
    """Context tokens at which half of that is reached."""
    pair_ms: float
    """Per attention pair of prefill."""
    query_tile: int
    """Prefill attention computes whole tiles of so many query tokens."""
    row_ms: float
    """Per sequence: sampling, tables, host work."""
    mixed_ms: float
    """Launches of a step with prefill, which no captured graph holds."""
    graph_grid: int
    """Decode-only steps are padded to a multiple of it."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The random factor of a step's time."""

    sigma: float
    """Standard deviation of the logarithm."""
    correlation: float
    """From one step to the next."""
    spike_chance: float
    """Per step."""
    spike: tuple[float, float] = (1.5, 3.0)
    """Least and largest factor."""


@dataclass(frozen=True, slots=True, eq=False)
class Hardware:
    """One model on one device (or several that work as one)."""

    name: str
    device: str
    """As the engine would report it, `cuda:NVIDIA H100`."""
    size: ModelSize
    """The whole model's."""
    dtype: str
    num_kv_tokens: int
    """Tokens that fit into what memory the weights leave."""
    dense_ms: npt.NDArray[np.float64]
    """Milliseconds by tokens of a step [MAX_STEP_TOKENS + 1]."""
    costs: StepCosts
    noise: Noise

    def capacity(
        self, *, max_batch_size: int, max_token_budget: int, max_model_len: int = 32_768
    ) -> Capacity:
        """What an engine started on this hardware would allocate."""
        blocks = self.num_kv_tokens // BLOCK_TOKENS
        return Capacity(max_batch_size, max_token_budget, blocks, BLOCK_TOKENS, max_model_len)

    def model_info(self, max_model_len: int = 32_768) -> ModelInfo:
        """The model and device as the engine would report them: what a prior is picked by."""
        return ModelInfo(
            name=self.name,
            family="llama",
            revision="",
            dtype=self.dtype,
            device=self.device,
            num_parameters=self.size.num_parameters,
            vocab_size=128_256,
            max_model_len=max_model_len,
            bos_token_id=None,
            eos_token_ids=[],
            kv_bytes_per_token=self.size.kv_bytes_per_token,
            weight_bytes=self.size.weight_bytes,
        )


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Steps that begin in [start_s, end_s) take `factor` times as long."""

    start_s: float
    end_s: float
    factor: float
    ramp_s: float = 0.0
    """Seconds over which the factor grows from 1, and falls back to it before `end_s`."""


LLAMA_8B = ModelConfig(
    family="llama",
    num_layers=32,
    hidden_size=4096,
    intermediate_size=14_336,
    num_q_heads=32,
    num_kv_heads=8,
    head_size=128,
    vocab_size=128_256,
    max_len=131_072,
    norm_eps=1e-5,
    rope=Rope(500_000.0),
    tied_head=False,
)
_LLAMA_70B = replace(
    LLAMA_8B, num_layers=80, hidden_size=8192, intermediate_size=28_672, num_q_heads=64, windows=()
)
_SMOLLM2_135M = replace(
    LLAMA_8B,
    num_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    num_q_heads=9,
    num_kv_heads=3,
    head_size=64,
    vocab_size=49_152,
    max_len=8192,
    tied_head=True,
    windows=(),
)
_H100 = Accelerator(GPUS["h100"], 132, 0.70, 0.80, link_gbps=350.0)
_A100 = Accelerator(GPUS["a100"], 108, 0.78, 0.80)


def _costs(
    accelerator: Accelerator, model: ModelConfig, *, ranks: int = 1, row_ms: float
) -> StepCosts:
    """Costs on each of so many GPUs, which share the heads."""
    device = accelerator.device
    kv_bytes = model.kv_bytes_per_token(_BF16.bytes_per_value) // ranks
    pair_flops = 4 * model.num_q_heads * model.head_size * model.num_layers // ranks
    return StepCosts(
        context_ms=0.94 * kv_bytes / (device.gbps * 0.89 * 1e6),
        few_rows=0.35,
        rows_scale=12.0,
        long_context=0.20,
        context_scale=150_000.0,
        # Flash attention reaches half of the datasheet, its causal tiles included.
        pair_ms=pair_flops / (device.tflops * 0.5 * 1e9),
        query_tile=128,
        row_ms=row_ms,
        mixed_ms=0.35,
        graph_grid=8,
    )


def _cpu_dense_ms() -> npt.NDArray[np.float64]:
    """Weights are read once; products go in tiles of 16 tokens and fill the caches slowly."""
    tokens = np.arange(MAX_STEP_TOKENS + 1, dtype=np.float64)
    tiled = 16 * np.ceil(np.maximum(tokens - 4, 0) / 16)
    return np.asarray(28.0 + 1.75 * tiled**0.97 + 0.6 * np.minimum(tokens, 4), np.float64)


_BF16, _FP32 = Precision(2), Precision(4)
_GPU_NOISE = Noise(sigma=0.03, correlation=0.6, spike_chance=0.001)

H100_8B = Hardware(
    name="H100_8B",
    device="cuda:NVIDIA H100 80GB HBM3",
    size=size_of(LLAMA_8B, _BF16),
    dtype="bfloat16",
    num_kv_tokens=412_000,
    dense_ms=dense_table(_H100, LLAMA_8B, host_ms=0.77, max_tokens=MAX_STEP_TOKENS),
    costs=_costs(_H100, LLAMA_8B, row_ms=0.0044),
    noise=_GPU_NOISE,
)
A100_8B = Hardware(
    name="A100_8B",
    device="cuda:NVIDIA A100-SXM4-80GB",
    size=size_of(LLAMA_8B, _BF16),
    dtype="bfloat16",
    num_kv_tokens=412_000,
    dense_ms=dense_table(_A100, LLAMA_8B, host_ms=0.9, max_tokens=MAX_STEP_TOKENS),
    costs=_costs(_A100, LLAMA_8B, row_ms=0.0055),
    noise=_GPU_NOISE,
)
H100_70B_TP4 = Hardware(
    name="H100_70B_TP4",
    device="cuda:NVIDIA H100 80GB HBM3",
    size=size_of(_LLAMA_70B, _BF16),
    dtype="bfloat16",
    num_kv_tokens=424_000,
    dense_ms=dense_table(_H100, _LLAMA_70B, ranks=4, host_ms=1.5, max_tokens=MAX_STEP_TOKENS),
    costs=_costs(_H100, _LLAMA_70B, ranks=4, row_ms=0.006),
    noise=Noise(sigma=0.04, correlation=0.6, spike_chance=0.002),
)
CPU_135M = Hardware(
    name="CPU_135M",
    device="cpu",
    size=size_of(_SMOLLM2_135M, _FP32),
    dtype="float32",
    num_kv_tokens=65_536,
    dense_ms=_cpu_dense_ms(),
    costs=StepCosts(
        context_ms=2.2e-3,
        few_rows=0.3,
        rows_scale=4.0,
        long_context=0.3,
        context_scale=8000.0,
        pair_ms=3e-5,
        query_tile=16,
        row_ms=2.5,
        mixed_ms=1.0,
        graph_grid=1,
    ),
    noise=Noise(sigma=0.08, correlation=0.7, spike_chance=0.002),
)
