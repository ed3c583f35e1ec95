"""What each key may do: requests at a time, requests and tokens a minute.

Rates are token buckets that hold one minute's worth. A request pays on arrival for its prompt and
for as many output tokens as its key's requests have had of late; what it really took is settled at
its end, so a bucket may be in debt. Every pod counts for itself.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from paceline_sidecar.errors import Refused
from paceline_sidecar.hot_config import AdmissionPolicy, KeyLimits
from paceline_sidecar.keys import Principal

_MINUTE_S = 60.0
_LONGEST_S = 60.0
_UNKNOWN_S = 1.0
_FIRST_GUESS = 64.0
"""Output tokens that are expected of a key's first request."""
_NEWEST_WEIGHT = 0.1


@dataclass(slots=True)
class Bucket:
    """Fills evenly, up to `per_minute`."""

    per_minute: float = 0.0
    level: float = 0.0
    at: float = 0.0

    def fill(self, per_minute: int, now: float) -> None:
        """Let time pass up to now; a rate that was changed starts with a full bucket."""
        if per_minute != self.per_minute:
            self.per_minute, self.level, self.at = per_minute, per_minute, now
        self.level = min(per_minute, self.level + (now - self.at) * per_minute / _MINUTE_S)
        self.at = now

    def seconds_until(self, wanted: float) -> float:
        """Return when there is enough; a full bucket is enough for anything."""
        missing = min(wanted, self.per_minute) - self.level
        # A hair of rounding must not send anybody away for a nanosecond.
        return missing * _MINUTE_S / self.per_minute if missing > 1e-6 * self.per_minute else 0.0


@dataclass(slots=True, eq=False)
class _Meter:
    """What one key does."""

    requests: Bucket
    tokens: Bucket
    running: int = 0
    mean_output: float = _FIRST_GUESS
    mean_s: float | None = None
    """How long its requests take."""


@dataclass(slots=True, eq=False)
class Pass:
    """One request of a key, from its arrival to its end."""

    meter: _Meter | None = None
    paid: float = 0.0
    arrived_at: float = 0.0
    expected_output: float = 0.0
    weight: float = 1.0
    """The share of its key, beside those of others."""
    is_over: bool = False

    def leave(self, *, prompt_tokens: int, output_tokens: int, now: float) -> None:
        """Settle what it really took. May be called again."""
        meter, was_over = self.meter, self.is_over
        self.is_over = True
        if meter is None or was_over:
            return
        meter.running -= 1
        meter.tokens.level += self.paid - prompt_tokens - output_tokens
        if output_tokens:
            lasted_s = now - self.arrived_at
            meter.mean_output += _NEWEST_WEIGHT * (output_tokens - meter.mean_output)
            known_s = lasted_s if meter.mean_s is None else meter.mean_s
            meter.mean_s = known_s + _NEWEST_WEIGHT * (lasted_s - known_s)


class KeyGate:
    """Lets the requests of each key in, or refuses them with the time at which it would."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._meters: dict[str, _Meter] = {}

    def enter(
        self, principal: Principal, policy: AdmissionPolicy, *, prompt_tokens: int, max_output: int
    ) -> Pass:
        """Let one request in, or raise `Refused`; `max_output` is 0 where it sets no bound.

        Whoever needs no key has no limits either.
        """
        limits = policy.limits_of(principal.name)
        if not principal.id:
            return Pass()
        now, meter = self._clock(), self._meter(principal, limits)
        output = min(meter.mean_output, max_output or math.inf)
        paid = prompt_tokens + output
        refusal = _refusal(meter, limits, paid, policy_name=principal.name)
        if refusal is not None:
            raise refusal
        meter.running += 1
        meter.requests.level -= 1
        meter.tokens.level -= paid
        return Pass(meter, paid, now, output, limits.weight)

    def headers(self, principal: Principal, policy: AdmissionPolicy) -> dict[str, str]:
        """Return OpenAI's rate-limit headers; none for what is not limited."""
        limits, headers = policy.limits_of(principal.name), dict[str, str]()
        if not principal.id:
            return headers
        meter = self._meter(principal, limits)
        for name, per_minute, bucket in (
            ("requests", limits.requests_per_minute, meter.requests),
            ("tokens", limits.tokens_per_minute, meter.tokens),
        ):
            if per_minute is not None:
                headers[f"x-ratelimit-limit-{name}"] = str(per_minute)
                headers[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(bucket.level)))
                headers[f"x-ratelimit-reset-{name}"] = duration(bucket.seconds_until(per_minute))
        return headers

    def _meter(self, principal: Principal, limits: KeyLimits) -> _Meter:
        meter = self._meters.get(principal.id)
        if meter is None:
            meter = self._meters[principal.id] = _Meter(Bucket(), Bucket())
        now = self._clock()
        meter.requests.fill(limits.requests_per_minute or 1, now)
        meter.tokens.fill(limits.tokens_per_minute or 1, now)
        return meter


def _refusal(
    meter: _Meter, limits: KeyLimits, tokens: float, *, policy_name: str
) -> Refused | None:
    whose = f"key `{policy_name}`" if policy_name else "key"
    most = limits.max_concurrent_requests
    if most is not None and meter.running >= most:
        message = f"At most {most} requests of this {whose} may run at once: {meter.running} do."
        # They end one after the other, evenly spread.
        wait_s = _UNKNOWN_S if meter.mean_s is None else meter.mean_s / meter.running
        return Refused("key_concurrency", message, retry_after_s=min(wait_s, _LONGEST_S))
    if limits.requests_per_minute is not None:
        wait_s = meter.requests.seconds_until(1.0)
        if wait_s > 0:
            message = f"This {whose} may send {limits.requests_per_minute} requests a minute."
            return Refused("key_requests", message, retry_after_s=wait_s)
    if limits.tokens_per_minute is not None:
        wait_s = meter.tokens.seconds_until(tokens)
        if wait_s > 0:
            message = f"This {whose} may use {limits.tokens_per_minute} tokens a minute."
            return Refused("key_tokens", message, retry_after_s=wait_s)
    return None


def duration(seconds: float) -> str:
    """Write a time as OpenAI's headers do: `20ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1e3)}ms"
    minutes, rest = divmod(seconds, _MINUTE_S)
    return f"{minutes:.0f}m{rest:.0f}s" if minutes else f"{rest:.3g}s"
