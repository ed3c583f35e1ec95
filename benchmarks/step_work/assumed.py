"""The step-time model's assumptions, where nothing is measured: each has a basis and a range.

The range of a prediction has every one of these at its favourable end, then every one at its other
end: it covers them together, and neither clocks that drop nor a library that chooses a bad kernel.
"""

from dataclasses import dataclass
from typing import Literal

End = Literal["likely", "best", "worst"]


@dataclass(frozen=True, slots=True)
class Assumed:
    """A number that is not measured here."""

    likely: float
    best: float
    worst: float
    because: str

    def at(self, end: End) -> float:
        """Return the number at one end of its range, or in between."""
        return {"likely": self.likely, "best": self.best, "worst": self.worst}[end]


STREAM = Assumed(
    0.88,
    0.93,
    0.80,
    "share of the bandwidth that a long read reaches: FlashAttention 3's decode 0.89 on an H100, "
    "0.91 on a B200, by the slope of vLLM's time over the context (blog of vLLM, 2026-04-22)",
)
WEIGHTS = Assumed(
    0.84,
    0.92,
    0.70,
    "the same for a product's weights: whole steps of one row stream them at 0.69 (gpt-fast, "
    "Llama-3.1-8B, A100) and 0.70 (vLLM, H100, the blog above) with all launches counted",
)
ROW_PRODUCT = Assumed(
    0.84 * 0.9,
    0.92,
    0.70 * 0.77,
    "the same for our own products of few rows: no measurement of such a kernel in Triton was "
    "found; at best as cuBLAS, at worst 0.77 of its worst, which is what whole models in Triton "
    "reach of those in CUDA for one token on an H100 (0.76 to 0.78, Llama-3-8B in float16, "
    "pytorch.org/blog/cuda-free-inference-for-llms); likely a guess, 0.9 of cuBLAS",
)
L2 = Assumed(
    5.5e12,
    7.0e12,
    4.4e12,
    "bytes a second from the L2 cache, to which our products add the rows once for each tile of "
    "outputs; a guess for an H100 at 132 multiprocessors, more by their number elsewhere",
)
LATENCY_S = Assumed(
    0.8e-6,
    0.6e-6,
    1.0e-6,
    "from a read's issue to its data under load; what must be in flight is bandwidth times this",
)
LAUNCH_S = Assumed(
    3.0e-6,
    1.3e-6,
    5.0e-6,
    "from the end of a kernel to where the next one streams, in a graph: 1.3 us for the launch "
    "alone, measured on an H100, and an 'optimistic 5 us' with stragglers and first reads "
    "(hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles)",
)
STREAM_LAUNCH_S = Assumed(
    0.8e-6,
    0.8e-6,
    0.8e-6,
    "how much longer without a graph: 2.1 us instead of 1.3, the same source",
)
DEPENDENT = Assumed(
    0.23,
    0.74,
    0.0,
    "share of that which a dependent launch hides behind a kernel that lets it begin: 0.96 us "
    "between two empty kernels of a graph on a GPU at 1755 MHz, the most that there is "
    "(pegainfer-project/pegainfer#569), of 1.3; 0.7 of 3 is a guess",
)
DEPENDENT_BEHIND_OTHERS = Assumed(
    0.0,
    0.38,
    0.0,
    "the same behind what does not, a product of cuBLAS or a copy: it begins when that has ended, "
    "before its memory is seen; a guess",
)
HOST_KERNEL_S = Assumed(
    25e-6,
    14e-6,
    45e-6,
    "the host's time for a launch of ours: 10 to 34 us by launcher (benchmarks/launcher_time.py, "
    "one shared core of an AMD EPYC, Triton 3.9), and some us of the driver's",
)
HOST_OP_S = Assumed(6e-6, 4e-6, 12e-6, "the host's time for an op of torch's; a guess")
HOST_GRAPH_S = Assumed(
    10e-6, 6e-6, 20e-6, "the host's time for the replay of a graph of some launches; a guess"
)
GRAPH_REPLAY_S = Assumed(
    15e-6,
    8e-6,
    40e-6,
    "from the replay's call to its first kernel, and the token's way back; a guess",
)
PRODUCT = Assumed(
    0.90,
    0.98,
    0.80,
    "share of `matmul_rate` in a shape that nobody searched for, beside what its tiles waste",
)
OWN_PRODUCT = Assumed(
    0.60,
    0.80,
    0.40,
    "the same for products of ours with many rows, which widen each weight first; a guess",
)
PREFILL_WGMMA = Assumed(
    0.40,
    0.48,
    0.33,
    "share of the tensor rate: Triton's kernels in FlashAttention 2's manner, 329 to 477 TFLOPS "
    "forward on an H100 with heads of 128 (pytorch/benchmark#2391); ours has the same loop, "
    "softmax between two products that are waited for",
)
PREFILL_MMA = Assumed(
    0.50, 0.62, 0.40, "the same on an A100: FlashAttention 2 reports 50 to 73 % of 312 TFLOPS"
)
PREFILL_TCGEN05 = Assumed(
    0.25,
    0.40,
    0.15,
    "the same on a B200, where the softmax of such a loop takes longer than its products: no "
    "measurement of Triton was found; a guess",
)
FLASH_2_ON_9 = Assumed(
    0.35,
    0.40,
    0.33,
    "share of the tensor rate of FlashAttention 2 on an H100: 35 % (abstract of FlashAttention 3, "
    "arXiv:2407.08608), which torch's wheels have; nothing was found for a B200",
)
NARROW_HEADS = Assumed(
    0.75, 0.90, 0.60, "what heads of 64 reach of that: half the FLOPs for each exponential; a guess"
)
SUM_BY_NCCL_S = Assumed(
    14e-6,
    11e-6,
    21e-6,
    "a sum of 512 KiB between two ranks, its launch with it: NCCL took 13 us on two B200, 21 on "
    "four H100 (vLLM's pull requests 42324 and 24532)",
)
SUM_BY_PEERS_S = Assumed(
    9e-6,
    7e-6,
    14e-6,
    "the same by one shot: vLLM's own kernel took 7 us on two H100 (its pull request 24111), and "
    "torch's half again as long as a kernel in Triton where others measured small messages "
    "(yifuwang/symm-mem-recipes, pull request 3)",
)
EVERYTHING = {name: value for name, value in list(globals().items()) if isinstance(value, Assumed)}
