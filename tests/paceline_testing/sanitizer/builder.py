"""The interpreter's operations, with what each number and pointer was made of.

A pointer carries the tensors that it may have been made of; a number carries the lanes that came
from whole numbers too large for their type.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from triton.runtime import interpreter

from paceline_testing.sanitizer.memory import (
    Addresses,
    Flags,
    Given,
    KernelFaultError,
    Kind,
    Program,
)

_OWNERS, _OVERFLOWN = "owners", "overflown"
_SHAPING = {
    "create_broadcast",
    "create_expand_dims",
    "create_reshape",
    "create_splat",
    "create_trans",
    "create_unsplat",
}
_ARITHMETIC: dict[str, Any] = {
    "create_add": np.add,
    "create_sub": np.subtract,
    "create_mul": np.multiply,
}
_MEMORY = ("load", "store", "atomic", "descriptor", "print", "assert", "assume", "barrier")
_GARBAGE = 0x5A


_Builder: Any = interpreter.InterpreterBuilder


class WatchingBuilder(_Builder):  # type: ignore[misc]  # Triton has no types
    """The interpreter's builder, which looks at every access before it happens."""

    kernel: str
    given: list[Given]
    _program: Program
    _released: dict[int, dict[int, int]]
    """By address of an atomic: until when whose work is seen by who updates it next."""
    _updated: set[int]
    """Addresses of the program's own atomics."""

    def begin(self, kernel: str) -> None:
        """Start a launch."""
        self.kernel = kernel
        self.given = []
        self._program = Program()
        self._released = {}

    def set_grid_idx(self, x: int, y: int, z: int) -> None:
        """Start a program: what another one did is before no barrier of its own."""
        super().set_grid_idx(x, y, z)
        _, height, depth = self.grid_dim
        number = (x * height + y) * depth + z + 1
        self._program = Program(int(number), self._program.time + 1)
        self._updated = set()

    def create_barrier(self) -> None:
        """Let what was written so far be seen."""
        self._program.time += 1

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *rest: Any) -> Any:
        """Check, then load; what the mask leaves out is garbage unless `other` says more."""
        self._access(ptrs, mask, "loads")
        loaded = super().create_masked_load(ptrs, mask, other, *rest)
        if other is None and not mask.data.all():
            left_out = np.broadcast_to(~mask.data, loaded.data.shape)
            loaded.data = np.array(loaded.data)
            garbage = np.full(loaded.data.dtype.itemsize, _GARBAGE, dtype=np.uint8)
            is_float = loaded.data.dtype.kind == "f"
            loaded.data[left_out] = np.nan if is_float else garbage.view(loaded.data.dtype)[0]
        return loaded

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        """Check, then store."""
        self._access(ptrs, mask, "stores", value=value)
        return super().create_masked_store(ptrs, value, mask, *rest)

    def create_atomic_rmw(self, operation: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        """Check, then do it."""
        self._access(ptr, mask, "updates")
        self._meet(ptr, mask, rest[0])
        return super().create_atomic_rmw(operation, ptr, val, mask, *rest)

    def create_atomic_cas(self, ptr: Any, *rest: Any) -> Any:
        """Check, then do it."""
        mask = interpreter.TensorHandle(np.ones_like(ptr.data, dtype=bool), interpreter.tl.int1)
        self._access(ptr, mask, "updates")
        self._meet(ptr, mask, rest[2])
        return super().create_atomic_cas(ptr, *rest)

    def _meet(self, pointer: Any, mask: Any, order: Any) -> None:
        """See what others did before their atomics here, and let others see what this one did.

        What a program's threads did since its last barrier others may not see.
        """
        if order.name != "ACQUIRE_RELEASE":  # Triton's default
            return
        program = self._program
        for address in pointer.data[np.broadcast_to(mask.data, pointer.data.shape)].tolist():
            released = self._released.setdefault(address, {})
            for other, until in released.items():
                program.known[other] = max(until, program.known.get(other, 0))
            released.update(program.known)
            released[program.number] = program.time
            self._updated.add(address)

    def _access(self, ptrs: Any, mask: Any, verb: str, value: Any = None) -> None:
        is_touched = np.broadcast_to(mask.data, ptrs.data.shape)
        addresses: Addresses = ptrs.data[is_touched]
        if not len(addresses):
            return
        owners = self._owners_of(ptrs)
        item_bytes = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        overflown = ptrs.attr.get(_OVERFLOWN)
        if overflown is not None and np.broadcast_to(overflown, ptrs.data.shape)[is_touched].any():
            self._fail("overflow", verb, owners, "by way of a number that does not fit its type")
        is_inside = np.zeros(addresses.shape, dtype=np.bool_)
        for owner in owners:
            is_inside |= owner.holds(addresses, item_bytes)
        if not is_inside.all():
            outside = int(addresses[~is_inside][0])
            away = [(outside - owner.base) / owner.item_bytes for owner in owners]
            where = " or ".join(f"{offset:.10g}" for offset in away)
            self._fail("bounds", verb, owners, f"at element {where} from its first")
        if verb == "stores":
            self._require_one_value(addresses, value, is_touched, owners)
        self._program.is_last = self._updated.issuperset(addresses.tolist())
        for storage in {id(owner.storage): owner.storage for owner in owners}.values():
            here = (addresses >= storage.base) & (addresses < storage.base + storage.num_bytes)
            places = storage.bytes_of(addresses[here], item_bytes)
            if verb == "loads":
                fault = storage.read(places, self._program)
            else:
                fault = storage.write(
                    places,
                    self._program,
                    alone=ptrs.data.size == 1,
                    atomic=verb == "updates",
                )
            if fault is not None:
                self._fail(fault[0], verb, owners, fault[1])

    def _require_one_value(
        self, addresses: Addresses, value: Any, is_touched: Flags, owners: list[Given]
    ) -> None:
        unique, first = np.unique(addresses, return_index=True)
        if len(unique) == len(addresses):
            return
        values = np.broadcast_to(value.data, is_touched.shape)[is_touched]
        chosen = values[first][np.searchsorted(unique, addresses)]
        if not np.array_equal(chosen, values, equal_nan=values.dtype.kind == "f"):
            self._fail("race", "stores", owners, "different numbers at one address")

    def _owners_of(self, pointer: Any) -> list[Given]:
        owners: list[Given] | None = pointer.attr.get(_OWNERS)
        if owners is not None:
            return owners
        if pointer.data.size == 1:
            base = int(pointer.data.ravel()[0])
            if found := [given for given in self.given if given.base == base]:
                return found
        return self.given

    def _fail(self, kind: Kind, verb: str, owners: list[Given], message: str) -> None:
        frame = sys._getframe(1)
        while "/triton/" in frame.f_code.co_filename or "/sanitizer/" in frame.f_code.co_filename:
            assert frame.f_back is not None
            frame = frame.f_back
        where = f"{self.kernel}, line {frame.f_lineno} of {frame.f_code.co_filename}"
        names = " or ".join(map(str, owners))
        raise KernelFaultError(
            kind, f"program {self.grid_idx} {verb} {message}, of {names or 'nothing'}: {where}"
        )


def _watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def operation(self: WatchingBuilder, *args: Any) -> Any:
        result = method(self, *args)
        handles = [arg for arg in args if isinstance(arg, interpreter.TensorHandle)]
        if not isinstance(result, interpreter.TensorHandle):
            return result
        if hasattr(result.dtype.scalar, "element_ty"):
            pointers = [each for each in handles if hasattr(each.dtype.scalar, "element_ty")]
            owners = {id(one): one for each in pointers for one in self._owners_of(each)}
            result.attr[_OWNERS] = list(owners.values())
        overflown = _overflown(self, name, method, args, result)
        if overflown is not None and overflown.any():
            result.attr[_OVERFLOWN] = overflown
        return result

    return operation


def _overflown(
    builder: WatchingBuilder, name: str, method: Callable[..., Any], args: Any, result: Any
) -> Flags | None:
    """Tell which lanes of a result came from a number that does not fit."""
    here = _new_overflow(name, args, result)
    known = [getattr(arg, "attr", {}).get(_OVERFLOWN) for arg in args]
    if all(each is None for each in known):
        return here
    if name in _SHAPING:
        handles = [
            arg if each is None else interpreter.TensorHandle(each, interpreter.tl.int1)
            for arg, each in zip(args, known, strict=True)
        ]
        shaped: Flags = np.broadcast_to(method(builder, *handles).data, result.data.shape)
        return shaped.astype(np.bool_)
    shape = result.data.shape
    if name == "create_select":
        flags = [np.zeros(1, np.bool_) if each is None else each for each in known]
        chosen: Flags = np.where(args[0].data, flags[1], flags[2])
        return np.broadcast_to(chosen, shape)
    total = np.zeros(shape, dtype=np.bool_) if here is None else here
    for each in known:
        if each is not None:
            total = total | (each if _broadcasts(each.shape, shape) else each.any())
    return total


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(one in {1, other} for one, other in pairs)


def _new_overflow(name: str, args: Any, result: Any) -> Flags | None:
    if name == "create_int_cast":
        source = args[0].data
        if result.data.dtype.itemsize >= source.dtype.itemsize or result.data.dtype.kind != "i":
            return None
        lost: Flags = result.data.astype(np.int64) != source.astype(np.int64)
        return lost
    exact = _ARITHMETIC.get(name)
    if exact is None or result.data.dtype not in (np.int8, np.int16, np.int32):
        return None
    wide = exact(args[0].data.astype(np.int64), args[1].data.astype(np.int64))
    wrapped: Flags = wide != result.data
    return wrapped


for _name in dir(interpreter.InterpreterBuilder):
    if _name.startswith("create_") and not any(word in _name for word in _MEMORY):
        _method = getattr(interpreter.InterpreterBuilder, _name)
        setattr(WatchingBuilder, _name, _watched(_name, _method))
