"""Imports the engine where msgspec and pydantic are missing, as on a machine without a network.

The two are for its borders: the wire to the sidecar, and the environment. The suite crosses none,
it hands messages and settings over as objects, so plain dataclasses serve. Nothing is encoded,
and nothing is read from the environment; an unknown setting is refused, a value is not looked at.
"""

import copy
import dataclasses
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from inspect import get_annotations
from types import ModuleType
from typing import Any

_WIRE = "msgspec"
_ENVIRONMENT = ("pydantic", "pydantic_settings")
_ENGINE = ("paceline_wire", "paceline_engine.settings", "paceline_engine.engine.engine")
"""All that imports the two."""
_IS_VALIDATOR = "_is_validator"


def import_engine() -> tuple[str, ...]:
    """Import what needs the two; the names of those that are missing, and were stood in for.

    The stand-ins do not stay where others would find them: whether pydantic is there is asked by
    libraries that would use it for more.
    """
    missing = {} if _is_there(_WIRE) else {_WIRE: _wire()}
    if not all(map(_is_there, _ENVIRONMENT)):
        missing |= dict.fromkeys(_ENVIRONMENT, _environment())
    kept = {name: sys.modules[name] for name in missing if name in sys.modules}
    sys.modules.update(missing)
    try:
        for name in _ENGINE:
            import_module(name)
    finally:
        for name in missing:
            del sys.modules[name]
        sys.modules.update(kept)
    return tuple(missing)


def _is_there(name: str) -> bool:
    try:
        import_module(name)
    except ModuleNotFoundError:
        return False
    return True


class Struct:
    """Makes its subclasses dataclasses, as `msgspec.Struct` makes them records."""

    def __init_subclass__(cls, *, frozen: bool = False, **_how_it_is_encoded: object) -> None:
        """Give every object its own copy of a default that can change."""
        for name in get_annotations(cls):
            default = vars(cls).get(name)
            if isinstance(default, list | dict | set):
                setattr(cls, name, dataclasses.field(default_factory=partial(copy.copy, default)))
        # Truly frozen, each field would be set by a slow call.
        dataclasses.dataclass(unsafe_hash=frozen)(cls)


class _Coder:
    """A codec that nobody may use."""

    def __init__(self, *_types: object) -> None:
        """Take what a codec of msgspec takes."""

    def encode(self, _message: object) -> bytes:
        """Refuse."""
        raise NotImplementedError("msgspec is not installed: nothing can be sent")

    def decode(self, _message: object) -> object:
        """Refuse."""
        raise NotImplementedError("msgspec is not installed: nothing can be received")


def _wire() -> ModuleType:
    structs = _module("msgspec.structs", replace=dataclasses.replace)
    msgpack = _module("msgspec.msgpack", Encoder=_Coder, Decoder=_Coder)
    return _module(_WIRE, Struct=Struct, structs=structs, msgpack=msgpack)


class Settings:
    """Holds what it is given over its fields' defaults, as `pydantic_settings.BaseSettings`."""

    def __init__(self, **chosen: object) -> None:
        """Check what concerns several. Raises TypeError for an unknown field, or ValueError."""
        fields = get_annotations(type(self))
        if unknown := chosen.keys() - fields.keys():
            raise TypeError(f"settings must be among {', '.join(fields)}, got {sorted(unknown)}")
        self.__dict__.update({name: getattr(type(self), name) for name in fields} | chosen)
        for check in vars(type(self)).values():
            if getattr(check, _IS_VALIDATOR, False):
                check(self)

    @classmethod
    def model_validate(cls, chosen: Mapping[str, Any]) -> "Settings":
        """Make one of a mapping."""
        return cls(**chosen)


def _environment() -> ModuleType:
    def field(*, default: object, **_rules: object) -> object:
        return default

    def validator(*, mode: str) -> Callable[[Any], Any]:
        def mark(check: Any) -> Any:
            setattr(check, _IS_VALIDATOR, mode == "after")
            return check

        return mark

    return _module(
        "pydantic",
        Field=field,
        ValidationError=ValueError,
        model_validator=validator,
        BaseSettings=Settings,
        SettingsConfigDict=dict,
    )


def _module(name: str, **members: object) -> ModuleType:
    module = ModuleType(name, "Stands in for what is not installed.")
    vars(module).update(members)
    return module
