"""How many tokens of KV cache a pod has, as the engine will cut them, with the arithmetic shown."""

from dataclasses import dataclass
from typing import Final

from paceline_engine.hardware.devices import (
    BLOCK_TOKENS,
    CPU_KV_BYTES,
    CPU_MAX_MODEL_LEN,
    GIB,
    Device,
)
from paceline_engine.hardware.model_size import ModelSize
from paceline_engine.kv_cache import swap
from paceline_tuner.demand import Demand
from paceline_tuner.telemetry import CapacityValues

CUDA_CONTEXT_BYTES: Final = 1 << 30
"""Assumed: context, kernels and workspaces of the libraries."""
_UNKNOWN_STEP_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Line:
    """One line of arithmetic."""

    label: str
    working: str
    result: str


@dataclass(frozen=True, slots=True)
class KvMemory:
    """The memory of one pod, divided."""

    device: Device
    size: ModelSize
    """What this device holds: the model, or one rank's part of it."""
    fraction: float
    """`engine.kvCacheMemoryFraction`."""
    max_token_budget: int
    """Tokens of the largest step that buffers must hold."""
    draft: ModelSize | None = None
    """The draft model: its weights lie beside, and its keys and values of each token."""
    ranks: int = 1
    """Devices that share the model; each has the same memory."""
    swap_bytes: int = 0
    """`engine.swapMemory`: of the host, but a GPU has a buffer for what is on its way there."""
    asked_bytes: int | None = None
    """`engine.kvCacheMemory`, which replaces the fraction."""

    @property
    def step_bytes(self) -> int:
        """What the largest step of the model or its draft takes beside weights and cache."""
        if any(size.step_bytes_per_token is None for size in self._models):
            return _UNKNOWN_STEP_BYTES
        widest = max(size.step_bytes_per_token or 0 for size in self._models)
        return self.max_token_budget * widest

    @property
    def staged_bytes(self) -> int:
        """What swapped blocks take on a GPU, on their way to host memory and back; no draft's."""
        if self.device.is_cpu:
            return 0
        return swap.staged_bytes(self.swap_bytes, self.size.kv_bytes_per_token * BLOCK_TOKENS)

    @property
    def reserved_bytes(self) -> int:
        """What a GPU holds beside weights and cache."""
        return CUDA_CONTEXT_BYTES + self.step_bytes + self.staged_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of the model and of its draft."""
        return sum(size.weight_bytes for size in self._models)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the keys and values of one token, the draft's included."""
        return sum(size.kv_bytes_per_token for size in self._models)

    @property
    def _models(self) -> tuple[ModelSize, ...]:
        return (self.size,) if self.draft is None else (self.size, self.draft)

    @property
    def kv_bytes(self) -> int:
        """What is left for keys and values; negative where the weights do not fit."""
        if self.device.memory_bytes is None:
            return self.asked_bytes or CPU_KV_BYTES
        share = self.fraction if self.asked_bytes is None else 1.0
        left = int(self.device.memory_bytes * share) - self.weight_bytes - self.reserved_bytes
        return left if self.asked_bytes is None else min(self.asked_bytes, left)

    @property
    def num_blocks(self) -> int:
        """How many whole blocks fit."""
        return max(0, self.kv_bytes) // (self.kv_bytes_per_token * BLOCK_TOKENS)

    @property
    def tokens(self) -> int:
        """Tokens whose keys and values fit."""
        return self.num_blocks * BLOCK_TOKENS

    def longest(self, asked: int | None) -> int:
        """The longest sequence, prompt and answer, when `engine.maxModelLen` is `asked`."""
        default = CPU_MAX_MODEL_LEN if self.device.is_cpu else None
        limits = (self.size.max_len, asked or default, self.tokens)
        return min(limit for limit in limits if limit is not None)

    def capacity(self, max_batch_size: int, asked_len: int | None) -> CapacityValues:
        """The pod's capacity, in the words of its runtime API."""
        return CapacityValues(
            max_batch_size=max_batch_size,
            max_token_budget=self.max_token_budget,
            num_blocks=self.num_blocks,
            block_size=BLOCK_TOKENS,
            max_model_len=self.longest(asked_len),
        )

    def arithmetic(self) -> tuple[Line, ...]:
        """From the device's memory to tokens, line by line."""
        size, draft = self.size, self.draft
        shared = "heads and MLP are shared; embedding, norms and head are in each"
        ranks = [Line("ranks", shared, f"{self.ranks}")] if self.ranks > 1 else []
        weights = [Line("weights", size.weight_arithmetic, _gib(size.weight_bytes))]
        per_token = [Line("KV of one token", size.kv_arithmetic, f"{size.kv_bytes_per_token:,} B")]
        if draft is not None:
            weights.append(Line("its draft", draft.weight_arithmetic, _gib(draft.weight_bytes)))
            its_bytes = f"{draft.kv_bytes_per_token:,} B"
            per_token.append(Line("of its draft", draft.kv_arithmetic, its_bytes))
        each = "KV of one token" if draft is None else "both KV of one token"
        tokens = Line(
            "KV tokens", f"KV cache / {each}, blocks of {BLOCK_TOKENS}", f"{self.tokens:,}"
        )
        if self.device.memory_bytes is None:
            said = (
                "engine.kvCacheMemory"
                if self.asked_bytes
                else "the engine's own on a CPU, if it fits"
            )
            cache = Line("KV cache", said, _gib(self.kv_bytes))
            return *ranks, *weights, cache, *per_token, tokens
        if self.asked_bytes is not None:
            cache = Line("KV cache", "engine.kvCacheMemory, if it fits", _gib(self.kv_bytes))
            reserve = Line("reserve", self._reserve(), _gib(self.reserved_bytes))
            return *ranks, *weights, reserve, cache, *per_token, tokens
        usable = self.device.memory_bytes * self.fraction
        working = f"{_gib(self.device.memory_bytes)} x {self.fraction:g}"
        return (
            *ranks,
            Line("usable", working, _gib(int(usable))),
            *weights,
            Line("reserve", self._reserve(), _gib(self.reserved_bytes)),
            Line("KV cache", "usable - weights - reserve", _gib(self.kv_bytes)),
            *per_token,
            tokens,
        )

    def _reserve(self) -> str:
        context = f"{_gib(CUDA_CONTEXT_BYTES)} CUDA context (assumed)"
        staged = f" + {_gib(self.staged_bytes)} for swapping" if self.staged_bytes else ""
        if any(size.step_bytes_per_token is None for size in self._models):
            return f"{context} + {_gib(self.step_bytes)} for a step (assumed){staged}"
        widest = self.step_bytes // self.max_token_budget
        return f"{context} + a step of {self.max_token_budget:,} tokens x {widest:,} B{staged}"


def occupancy_line(demand: Demand, *, batch: int, tokens: int) -> Line:
    """How much of the cache the largest batch that fits takes."""
    deviation = demand.kv_deviation
    wanted = batch * demand.held + 2.33 * deviation * batch**0.5
    sign = "-" if deviation < 0 else "+"
    return Line(
        f"{batch} sequences",
        f"{batch} x {demand.held:,.0f} {sign} 2.33 x {abs(deviation):,.0f} x sqrt({batch})",
        f"{wanted:,.0f} of 0.95 x {tokens:,} tokens",
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:,.2f} GiB"
