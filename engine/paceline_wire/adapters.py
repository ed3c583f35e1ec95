"""LoRA adapters that come and go while the engine serves."""

import msgspec


class LoadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Load a LoRA adapter from a folder of PEFT. Answered by `AdaptersState` with the same `call`.

    New requests may name it from then on.
    """

    call: int
    name: str
    path: str
    """An absolute path, or `hf://ORG/NAME@REVISION`, which is downloaded while steps run on.

    Where another call for the same name comes meanwhile, only the last is answered.
    """
    replaces: bool = False
    """Replace an adapter that has the name; without this a name that is taken is refused."""


class UnloadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Forget a LoRA adapter. Answered as `LoadAdapter`. Requests that have it go on with it."""

    call: int
    name: str


class AdaptersState(msgspec.Struct, frozen=True, tag=True):
    """Which LoRA adapters requests may name, after a change or a refusal of one."""

    call: int
    adapters: list[str]
    error: str | None = None
    paths: list[str] = []
    """Where each of `adapters` was loaded from."""
