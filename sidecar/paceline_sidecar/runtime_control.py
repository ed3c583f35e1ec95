"""Applies changes of the hot configuration, one after the other."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import UnsetType

from paceline_sidecar.errors import Unavailable
from paceline_sidecar.live.limit_log import LimitLog
from paceline_sidecar.runtime_bodies import LimitsBody, TunerBody, limits_body
from paceline_sidecar.runtime_patch import ConfigPatch, LimitsPatch, coefficients_of, merged
from paceline_sidecar.service import Service
from paceline_sidecar.tuner_status import LastTunerStatus
from paceline_wire import LimitsState, SetLimits

Value = TypeVar("Value")


class EpochTooOld(Exception):  # noqa: N818 - a state of affairs
    """Somebody has changed the limits since the caller last looked."""


class AnotherEngine(Exception):  # noqa: N818 - as EpochTooOld
    """The change is meant for an engine that is not this one."""


class ChangeRefused(Exception):  # noqa: N818 - as EpochTooOld
    """The engine refuses the values."""


@dataclass(frozen=True, slots=True)
class _Held:
    state: LimitsState
    instance: str


class RuntimeControl:
    """The only writer of the limits and of the sidecar's hot configuration."""

    def __init__(self, service: Service, config_file: Path | None) -> None:
        self._service = service
        self._config_file = config_file
        self._one_at_a_time = asyncio.Lock()
        self._patched = False
        self.log = LimitLog()
        """Hears of every change, with the reasons that come with changes from here."""
        self.tuner = LastTunerStatus()
        """Hears what the tuner says of this pod with changes and renewals."""

    def state(self) -> LimitsBody:
        """Return what holds now; raises `Unavailable`."""
        held, now = self._held(), self._service.clock()
        return limits_body(
            held.state,
            self._service.config,
            instance=held.instance,
            now=now,
            reason=self.log.reason(held.state.epoch),
            capacity_rps=self._service.load_meter.capacity_rps(self._service.backend.view),
            tuner=TunerBody.of(self.tuner.status(self._service.backend.view, now=now), now=now),
        )

    async def patch(self, patch: LimitsPatch) -> LimitsBody:
        """Apply a change, or renew the lease.

        Raises `EpochTooOld`, `AnotherEngine`, `ChangeRefused`.
        """
        async with self._one_at_a_time:
            if patch.instance not in {None, self._held().instance}:
                raise AnotherEngine
            held = self._held().state.epoch
            if patch.epoch < held:
                raise EpochTooOld
            if patch.epoch == held:
                # Equal epochs renew: the caller says the same thing again.
                await self._set(SetLimits(call=0, epoch=held, lease_s=patch.lease_s))
            else:
                if not isinstance(patch.reason, UnsetType):
                    self.log.expect(patch.epoch, patch.reason)
                await self._apply(patch, patch.epoch)
                self._patched = True
            if patch.capacity_rps is not None:
                self._service.load_meter.told(patch.capacity_rps, self._held().instance)
            at, instance, said = self._service.clock(), self._held().instance, patch.tuner
            self.tuner.update(None if said is None else said.status(at=at, instance=instance))
            return self.state()

    async def configure(self) -> None:
        """Bring a new engine to what is wanted, before it counts as ready."""
        await self._apply_file()
        await self._service.adapters.fill()

    async def _apply_file(self) -> None:
        if self._config_file is None:
            return
        content = await asyncio.to_thread(self._config_file.read_bytes)
        try:
            patch = msgspec.json.decode(content, type=ConfigPatch)
        except msgspec.DecodeError as error:
            message = f"{self._config_file}: {error}"
            raise ValueError(message) from error
        async with self._one_at_a_time:
            await self._set(_set_limits(patch, self._held().state.epoch + 1))
            # What was patched since we started is newer than the file.
            if not self._patched:
                self._obey(patch)

    async def _apply(self, patch: ConfigPatch, epoch: int) -> None:
        await self._set(_set_limits(patch, epoch))
        self._obey(patch)

    def _obey(self, patch: ConfigPatch) -> None:
        self._service.follow(merged(self._service.config, patch))
        if not isinstance(patch.adapters, UnsetType):
            self._service.adapters.want({adapter.name: adapter.path for adapter in patch.adapters})

    async def _set(self, change: SetLimits) -> None:
        answer = await self._service.backend.set_limits(change)
        if answer.error is not None:
            raise EpochTooOld if answer.epoch > change.epoch else ChangeRefused(answer.error)

    def _held(self) -> _Held:
        view = self._service.backend.view
        if view.limits is None or view.phase not in {"ready", "stalled"}:
            raise Unavailable("engine_starting", f"Not ready: {view.detail}.")
        return _Held(view.limits, view.instance)


def _set_limits(patch: ConfigPatch, epoch: int) -> SetLimits:
    return SetLimits(
        call=0,
        epoch=epoch,
        max_batch_size=_value(patch.max_batch_size),
        token_budget=_value(patch.token_budget),
        step_target_ms=_value(patch.step_target_ms),
        clear_step_target=patch.step_target_ms is None,
        interactive_share=_value(patch.interactive_share),
        batch_share=_value(patch.batch_share),
        pace_tpot_ms=_value(patch.pace_tpot_ms),
        clear_pace_tpot=patch.pace_tpot_ms is None,
        batch_step_target_ms=_value(patch.batch_step_target_ms),
        clear_batch_step_target=patch.batch_step_target_ms is None,
        may_pause_batch=_value(patch.may_pause_batch),
        lease_s=patch.lease_s,
        certified=patch.certified,
        coefficients=coefficients_of(patch),
    )


def _value(given: Value | UnsetType | None) -> Value | None:
    return None if isinstance(given, UnsetType) else given
