"""LoRA adapters on the device: slots of a fixed rank that are filled and emptied while serving."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paceline_engine.checkpoint.peft_folder import LoraPair, read_peft_folder
from paceline_engine.core.batch import Batch
from paceline_engine.core.step_tensors import Int64s
from paceline_engine.errors import AdapterRefused
from paceline_engine.lora.adapters import LoadedAdapter
from paceline_engine.model.layers.linear import Linear
from paceline_engine.model.layers.lora_linear import LoraLinear, TokenSlots


class LoraAdapters:
    """Implements `paceline_engine.lora.adapters.Adapters`."""

    def __init__(self, num_slots: int, max_rank: int) -> None:
        self._num_slots = num_slots
        self._max_rank = max_rank
        self._token_slots = TokenSlots()
        self._products: dict[str, tuple[LoraLinear, str]] = {}
        self._adapters: dict[str, LoadedAdapter] = {}
        self._num_loads = 0

    def wrap(self, prefix: str, parts: dict[str, int], num_inputs: int, base: Linear) -> Linear:
        """Let adapters add to a product; `parts` are its stacked weights and their outputs."""
        product = LoraLinear(base, parts, num_inputs, self._token_slots)
        self._products |= {f"{prefix}{part}": (product, part) for part in parts}
        return product

    def place(self, like: Tensor) -> None:
        """Take the memory of every slot, on the device and in the type of `like`."""
        for product in dict.fromkeys(product for product, _ in self._products.values()):
            product.reserve(self._num_slots, self._max_rank, like=like)

    @staticmethod
    def slots_of(batch: Batch) -> Int64s | None:  # [T]
        """Return the slot of each token, -1 for none; None where no adapter takes part."""
        slots = [chunk.request.adapter_slot for chunk in batch.chunks]
        if not any(slot is not None for slot in slots):
            return None
        of_chunks = np.array([-1 if slot is None else slot for slot in slots], dtype=np.int64)
        return of_chunks.repeat([chunk.count for chunk in batch.chunks])

    def use(self, of_tokens: Tensor | None, kept_rows: Tensor | None = None) -> None:
        """Set the adapter slot of each token of the step; `kept_rows` is as in `Decoder.hidden`."""
        self._token_slots.of_tokens = of_tokens
        self._token_slots.of_kept = None
        if of_tokens is not None and kept_rows is not None:
            self._token_slots.of_kept = of_tokens[kept_rows]

    @contextmanager
    def using(self, of_tokens: Tensor | None) -> Iterator[None]:
        """Let each token use the slot of its own, within the block alone."""
        slots = self._token_slots
        before = slots.of_tokens, slots.of_kept
        self.use(of_tokens)
        try:
            yield
        finally:
            slots.of_tokens, slots.of_kept = before

    @property
    def names(self) -> list[str]:
        """See `Adapters`."""
        return list(self._adapters)

    @property
    def paths(self) -> list[str]:
        """See `Adapters`."""
        return [adapter.path for adapter in self._adapters.values()]

    def find(self, name: str) -> LoadedAdapter | None:
        """See `Adapters`."""
        return self._adapters.get(name)

    def load(
        self, name: str, path: str, *, folder: Path, in_use: Collection[int], replaces: bool
    ) -> None:
        """See `Adapters`."""
        if name in self._adapters and not replaces:
            raise AdapterRefused(f"The adapter {name!r} is loaded already: unload it first.")
        others = (adapter for other, adapter in self._adapters.items() if other != name)
        taken = {adapter.slot for adapter in others} | set(in_use)
        free = [slot for slot in range(self._num_slots) if slot not in taken]
        if not free:
            raise AdapterRefused(
                f"All {self._num_slots} adapter slots (PACELINE_ENGINE_MAX_LORAS) are taken, by "
                f"{', '.join(self._adapters) or 'requests of unloaded adapters'}: unload one, and "
                "wait for its requests to end."
            )
        pairs = read_peft_folder(folder)
        self._check(pairs)
        self._fill(free[0], pairs)
        self._num_loads += 1
        self._adapters[name] = LoadedAdapter(free[0], f"lora {self._num_loads} {name}", path)

    def unload(self, name: str) -> None:
        """See `Adapters`."""
        if self._adapters.pop(name, None) is None:
            raise AdapterRefused(
                f"There is no adapter {name!r}; loaded are: {', '.join(self._adapters) or 'none'}."
            )

    def _check(self, pairs: dict[str, LoraPair]) -> None:
        for name, pair in pairs.items():
            if name not in self._products:
                raise AdapterRefused(f"The adapter adds to {name}, which the model does not have.")
            product, part = self._products[name]
            wanted = (product.parts[part], product.num_inputs)
            seen = (pair.up.shape[0], pair.down.shape[1])
            if seen != wanted:
                raise AdapterRefused(
                    f"The adapter's {name} maps {seen[1]} to {seen[0]}, the model's maps "
                    f"{wanted[1]} to {wanted[0]}: it was made for another model."
                )
            if len(pair.down) > self._max_rank:
                raise AdapterRefused(
                    f"The adapter's rank is {len(pair.down)}, at most {self._max_rank} is allowed "
                    "(PACELINE_ENGINE_MAX_LORA_RANK)."
                )
            if not (pair.down.isfinite().all() and pair.up.isfinite().all()):
                raise AdapterRefused(f"The adapter's {name} holds values that are not numbers.")

    @torch.inference_mode()
    def _fill(self, slot: int, pairs: dict[str, LoraPair]) -> None:
        for name, (product, part) in self._products.items():
            product.put(part, slot, pairs.get(name))
