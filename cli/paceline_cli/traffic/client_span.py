"""What the client measured in one stretch of time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline_cli.traffic.record import ClientRecord, percentile
from paceline_tuner.attainment import by_prompt_tokens
from paceline_tuner.service_report import MeasuredLatency, Quantiles
from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import RequestRecord

P99 = 0.99


@dataclass(frozen=True, slots=True)
class ClientSpan:
    """The client's measurements of one stretch of time."""

    seconds: float
    due: tuple[ClientRecord, ...]
    """Offered requests: those that were due in it and whose client did not leave."""
    itl_ms: tuple[float, ...]
    """Every gap that ended in it."""
    output_tokens: int
    num_cancelled: int = 0
    """Clients that left, as planned: neither offered nor missed."""

    @property
    def offered(self) -> int:
        """How many requests were due."""
        return len(self.due)

    @property
    def misses(self) -> tuple[ClientRecord, ...]:
        """The requests that were refused, failed or timed out, in the order of their ends."""
        return tuple(record for record in self.due if record.outcome != "ok")

    @property
    def ttft_ms(self) -> tuple[float, ...]:
        """Time to first token of every offered request; infinite for one that got no answer."""
        return tuple(_first_token_ms(record) for record in self.due)

    @property
    def tpot_ms(self) -> tuple[float, ...]:
        """Mean time per output token of every request that has two."""
        return tuple(ms for record in self.due if (ms := record.tpot_ms) is not None)

    def observed(self, sla: SLA) -> MeasuredLatency:
        """Return the span's percentiles and attainment as the tuner reports them."""
        high = self._quantiles(sla, P99)
        is_own = sla.objective != P99
        return MeasuredLatency(
            ttft_p99_ms=high.ttft_ms,
            tpot_p99_ms=high.tpot_ms,
            itl_p99_ms=high.itl_ms,
            samples=self.offered,
            attainment=self._attainment(sla),
            e2e_p99_ms=high.e2e_ms,
            at_objective=self._quantiles(sla, sla.objective) if is_own else None,
            by_prompt_tokens=by_prompt_tokens(sla, [_as_served(record) for record in self.due]),
        )

    def _quantiles(self, sla: SLA, share: float) -> Quantiles:
        lasted_ms = () if sla.e2e_p99_ms is None else [whole_ms(record) for record in self.due]
        return Quantiles(
            share=share,
            ttft_ms=percentile(self.ttft_ms, share),
            tpot_ms=percentile(self.tpot_ms, share),
            itl_ms=percentile(self.itl_ms, share),
            e2e_ms=percentile(lasted_ms, share),
        )

    def _attainment(self, sla: SLA) -> float | None:
        """Return the lesser of the shares of requests and of gaps that met their targets."""
        shares = []
        if self.due:
            shares.append(sum(is_met(sla, record) for record in self.due) / len(self.due))
        if self.itl_ms and sla.itl_p99_ms is not None:
            shares.append(sum(ms <= sla.itl_p99_ms for ms in self.itl_ms) / len(self.itl_ms))
        return min(shares, default=None)


def span(records: Sequence[ClientRecord], start_at: float, end_at: float) -> ClientSpan:
    """Cut out the requests that were due and the gaps that ended in [start_at, end_at)."""
    all_due = [record for record in records if start_at <= record.planned_at < end_at]
    due = tuple(record for record in all_due if record.outcome != "cancelled")
    return ClientSpan(
        seconds=end_at - start_at,
        due=due,
        num_cancelled=len(all_due) - len(due),
        output_tokens=sum(start_at <= at < end_at for record in records for at in record.token_ats),
        itl_ms=tuple(
            ms
            for record in records
            for at, ms in zip(record.token_ats[1:], record.itls_ms, strict=True)
            if start_at <= at < end_at
        ),
    )


def is_met(sla: SLA, record: ClientRecord) -> bool:
    """Whether a request was answered within each target that one request can meet."""
    declared_ms = sla.ttft_ms(record.prompt_tokens)
    ttft_target = math.inf if declared_ms is None else declared_ms
    tpot_target = math.inf if sla.tpot_p99_ms is None else sla.tpot_p99_ms
    return (
        record.outcome == "ok"
        and _first_token_ms(record) <= ttft_target
        and (record.tpot_ms or 0.0) <= tpot_target
        and (sla.e2e_p99_ms is None or whole_ms(record) <= sla.e2e_p99_ms)
    )


def _as_served(record: ClientRecord) -> RequestRecord:
    """Describe a request as a sidecar does; one without an answer counts as a short prompt."""
    return RequestRecord(
        seq=0,
        arrived_at=record.planned_at,
        finished_at=record.finished_at,
        prompt_tokens=record.prompt_tokens,
        output_tokens=record.output_tokens,
        outcome=record.outcome,
        ttft_ms=record.ttft_ms,
    )


def whole_ms(record: ClientRecord) -> float:
    """Planned sending to the end; infinite for a request that got no whole answer."""
    return (record.finished_at - record.planned_at) * 1e3 if record.outcome == "ok" else math.inf


def _first_token_ms(record: ClientRecord) -> float:
    return math.inf if record.ttft_ms is None else record.ttft_ms
