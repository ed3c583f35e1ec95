"""What an answer says of this pod's load, in the ORCA format that gateways balance by.

Envoy gives a pod the weight `rps_fractional / application_utilization`. With λ/λ* as utilization
that is λ*, what the pod can serve within its SLA. While nobody has said λ*, utilization is the
share of the batch that is taken, and the weight is the batch size over the time of a request.

Envoy cuts a weight to a whole number of at least 1, and pods of large models serve a few requests a
second or less: 2.5 and 1.9 would weigh 2 and 1. So the rate is told in hundredths, which leaves the
proportions between pods as they are. And Envoy begins its schedule anew whenever a cut weight has
changed, which gives a pod of small weight more than its share. So the rate is told a hair too high,
or rounding would turn a weight of 8 into 7 in every second report.
"""

import json
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from starlette.datastructures import Headers

from paceline_sidecar.backend import EngineView
from paceline_sidecar.metrics.ledger import Ledger

HEADER: Final = "endpoint-load-metrics"
FORMAT_HEADER: Final = "endpoint-load-metrics-format"
"""A request asks by it for `TEXT` or `JSON`, as of vLLM."""
RATE_SCALE: Final = 100
"""`rps_fractional` of one request a second."""
_ABOVE: Final = 1 + 2e-5
"""More than rounding to six digits takes from a rate, or adds to a utilization."""
_MEMORY_S: Final = 10.0
_SLA_WINDOW_S: Final = 60.0
_SLA_EVERY_S: Final = 5.0
_FEWEST_REQUESTS: Final = 20
"""With fewer requests in the window, a p99 says nothing."""
_DEVIATIONS: Final = 2.0
"""Standard deviations of misses above the objective that count as a violation. Fewer are chance,
and would give equal pods unequal weights."""
_LEAST: Final = 1e-3
"""Envoy ignores a report whose rate or utilization is zero."""
_FORGOTTEN_RPS: Final = 1e-9
"""A rate below this is forgotten: it is as small three minutes after the last request."""
_TRUST: Final = 0.01
"""A share of λ*: of so few requests, it counts for little how many were refused."""


@dataclass(frozen=True, slots=True)
class Load:
    """One report; the names are those of ORCA, and of vLLM where it has one."""

    utilization: float
    """λ/λ*, or the share of the batch that is taken; at least 1 while the SLA is violated."""
    served_rps: float
    waiting: int
    kv_share: float
    is_sla_violated: bool

    def totals(self) -> dict[str, float]:
        """Return ORCA's own fields, by which Envoy weighs a pod."""
        return {
            "application_utilization": _rounded(self.utilization),
            "rps_fractional": _rounded(RATE_SCALE * self.served_rps * _ABOVE),
        }

    def named_metrics(self) -> dict[str, float]:
        """Return what ORCA has no field for."""
        return {
            "num_requests_waiting": self.waiting,
            "kv_cache_usage_perc": round(self.kv_share, 4),
            "sla_violated": int(self.is_sla_violated),
        }

    def header(self, kind: str) -> str:
        """Write the header's value as `JSON`, or as `TEXT`."""
        fields, named = self.totals(), self.named_metrics()
        if kind == "TEXT":
            rows = fields | {f"named_metrics.{name}": value for name, value in named.items()}
            return "TEXT " + ",".join(f"{name}={value}" for name, value in rows.items())
        return "JSON " + json.dumps({**fields, "named_metrics": named}, separators=(",", ":"))


@dataclass(slots=True)
class _Decaying:
    """A value that forgets: after ten seconds a third of it is left."""

    value: float = 0.0
    at: float = -math.inf

    def fade(self, now: float, towards: float = 0.0) -> float:
        """Let time pass in which the true value was `towards`."""
        kept = math.exp(-max(0.0, now - self.at) / _MEMORY_S)
        self.value, self.at = towards + (self.value - towards) * kept, now
        return self.value

    def count(self, now: float) -> None:
        """Add one event to a rate, events a second."""
        self.value, self.at = self.fade(now) + 1 / _MEMORY_S, now


@dataclass(slots=True)
class LoadMeter:
    """Hears of requests as they come and end."""

    clock: Callable[[], float]
    _offered: _Decaying = field(init=False, default_factory=_Decaying)
    _served: _Decaying = field(init=False, default_factory=_Decaying)
    _busy: _Decaying = field(init=False, default_factory=_Decaying)
    _in_flight: int = field(init=False, default=0)
    _capacity: tuple[float, str] | None = field(init=False, default=None)
    _counted: deque[tuple[float, int, int]] = field(init=False, default_factory=deque)

    def offered(self) -> None:
        """Count a request that came, whatever becomes of it."""
        self._offered.count(self.clock())

    def began(self) -> None:
        """Count a request that was let in."""
        now = self.clock()
        self._served.count(now)
        self._busy.fade(now, self._in_flight)
        self._in_flight += 1

    def ended(self) -> None:
        """Note that such a request is over."""
        self._busy.fade(self.clock(), self._in_flight)
        self._in_flight -= 1

    def told(self, capacity_rps: float, instance: str) -> None:
        """Take λ* of the engine `instance`, requests a second, as the operator learned it."""
        self._capacity = (capacity_rps, instance)

    def capacity_rps(self, view: EngineView) -> float | None:
        """Return λ*; None while it is not known, or as old as a lease that was lost."""
        limits = view.limits
        if self._capacity is None or limits is None or limits.lease_lost:
            return None
        capacity_rps, instance = self._capacity
        return capacity_rps if instance == view.instance else None

    def load(self, view: EngineView, ledger: Ledger, waiting: int) -> Load:
        """Return the load now."""
        now = self.clock()
        utilization, served_rps = self._rates(view, now)
        is_violated = self._is_violated(ledger, now)
        return Load(
            utilization=max(utilization, 1.0) if is_violated else utilization,
            served_rps=max(served_rps, _FORGOTTEN_RPS),
            waiting=waiting,
            kv_share=_kv_share(view, ledger),
            is_sla_violated=is_violated,
        )

    def has_news(self, view: EngineView) -> bool:
        """Tell whether a report has a weight in it: λ* is known, or requests were let in lately."""
        is_told = self.capacity_rps(view) is not None
        return is_told or self._served.fade(self.clock()) > _FORGOTTEN_RPS

    def _rates(self, view: EngineView, now: float) -> tuple[float, float]:
        """Return the utilization and the rate of requests that were let in, for the weight.

        The utilization is at least the smallest that counts. Without requests both are raised
        alike, so that the weight stays; with a known λ*, what was refused is forgotten.
        """
        offered, served = self._offered.fade(now), self._served.fade(now)
        capacity_rps = self.capacity_rps(view)
        if capacity_rps is not None:
            few = _TRUST * capacity_rps
            utilization = max(offered / capacity_rps, _LEAST)
            # Who is let in is counted a moment later, and so has faded less.
            share = min(1.0, (served + few) / (offered + few))
            return utilization, share * utilization * capacity_rps
        batch_size = view.limits.effective.max_batch_size if view.limits else 1
        utilization = self._busy.fade(now, self._in_flight) / max(1, batch_size)
        if utilization >= _LEAST:
            return utilization, served
        # While one runs, the utilization still grows to what it is worth.
        is_idle = not self._in_flight and utilization > 0
        return _LEAST, served * _LEAST / utilization if is_idle else max(served, _LEAST)

    def _is_violated(self, ledger: Ledger, now: float) -> bool:
        """Tell whether more of the last minute's requests missed the SLA than chance explains."""
        config, counted = ledger.config, self._counted
        lanes = [
            counts
            for lane, counts in ledger.lanes.items()
            if lane == "interactive" or config.batch_sla is None
        ]
        met = sum(counts.met for counts in lanes)
        missed = sum(sum(counts.missed.values()) for counts in lanes)
        if not counted or now - counted[-1][0] >= _SLA_EVERY_S:
            counted.append((now, met, missed))
        while len(counted) > 1 and counted[1][0] <= now - _SLA_WINDOW_S:
            counted.popleft()
        new_met, new_missed = met - counted[0][1], missed - counted[0][2]
        offered = new_met + new_missed
        allowed = (1 - config.sla.objective) * offered
        most = allowed + _DEVIATIONS * math.sqrt(allowed)
        return offered >= _FEWEST_REQUESTS and new_missed > most


def _rounded(value: float) -> float:
    """Keep six digits: those of a pod with little to do are behind many zeros."""
    return float(f"{value:.6g}")


def _kv_share(view: EngineView, ledger: Ledger) -> float:
    if ledger.telemetry is None or view.limits is None:
        return 0.0
    return ledger.telemetry.load.kv_used_blocks / max(1, view.limits.capacity.num_blocks)


def read_format(headers: Headers) -> str:
    """Return the format that a request asks for: `JSON` unless it says `TEXT`."""
    return "TEXT" if headers.get(FORMAT_HEADER, "").strip().upper() == "TEXT" else "JSON"
