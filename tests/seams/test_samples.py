"""A sidecar's sample is what the tuner would choose from all records, and is read as such."""

import random

import msgspec

from paceline_sidecar.metrics import sample as written
from paceline_sidecar.metrics.finished_request import FinishedRequest
from paceline_sidecar.metrics.ring import Numbered
from paceline_sidecar.runtime_bodies import request_of, request_row, step_of, step_row
from paceline_testing.telemetry import a_telemetry
from paceline_tuner import sample as read
from paceline_tuner.telemetry import RequestRecord, Step, decode_telemetry
from paceline_wire import StepRecord

_CHANCE = random.Random(11)


def some_requests(count: int) -> list[Numbered[FinishedRequest]]:
    return [
        Numbered(
            n,
            FinishedRequest(
                _CHANCE.choice(("interactive", "batch")),
                90.0,
                100.0 + 5.0 * n / count,
                _CHANCE.choice(("ok", "ok", "ok", "shed")),
                ttft_ms=_CHANCE.choice((None, _CHANCE.uniform(10, 900))),
                tpot_ms=_CHANCE.uniform(1, 90),
                itl_max_ms=_CHANCE.uniform(1, 200),
                output_tokens=_CHANCE.randint(1, 500),
            ),
        )
        for n in range(1, count + 1)
    ]


def some_steps(count: int) -> list[Numbered[StepRecord]]:
    return [
        Numbered(
            n,
            StepRecord(
                decode=n % 3,
                prefill=5,
                context=100,
                attention=7,
                wall_ms=_CHANCE.uniform(5, 60),
                seq=n,
                at=100.0 + 5.0 * n / count,
                host_ms=0.5,
                running=4,
                waiting=0,
                waiting_tokens=0,
                kv_used=9,
                preemptions=0,
                epoch=2,
                token_budget=512,
                paced_tokens=500,
                predicted_ms=30.0,
                clean=True,
            ),
        )
        for n in range(1, count + 1)
    ]


def test_both_ends_choose_the_same_requests() -> None:
    """An older sidecar sends all of them, and its pods are judged no differently."""
    for count in (1, 10, 50, 417, 2000):
        requests = some_requests(count)
        all_of_them = msgspec.convert(
            [msgspec.to_builtins(request_of(one.seq, one.record)) for one in requests],
            list[RequestRecord],
        )

        sent = [request_row(group) for group in written.sampled_requests(requests, 24)]
        chosen = read.sampled_requests(all_of_them, 24)

        assert [(row.seq, row.weight) for row in sent] == [(r.seq, r.weight) for r in chosen]


def test_both_ends_choose_the_same_steps() -> None:
    """With the same number of steps behind each."""
    for count in (1, 10, 250, 1000):
        steps = some_steps(count)
        all_of_them = msgspec.convert(
            [msgspec.to_builtins(step_of(one.seq, one.record)) for one in steps], list[Step]
        )

        sent = [step_row(group) for group in written.sampled_steps(steps, 24)]
        chosen = read.sampled_steps(all_of_them, 24)

        assert [(row.seq, row.weight, row.decodes) for row in sent] == [
            (row.seq, row.weight, row.num_decodes) for row in chosen
        ]


def test_rows_arrive_as_they_were_sent() -> None:
    """Value by value, though they have no names on their way."""
    rows: dict[str, list[msgspec.Struct]] = {
        "step_rows": [step_row(g) for g in written.sampled_steps(some_steps(100), 24)],
        "request_rows": [request_row(g) for g in written.sampled_requests(some_requests(99), 24)],
    }
    told = msgspec.to_builtins(a_telemetry(105.0)) | msgspec.to_builtins(rows)

    arrived = decode_telemetry(msgspec.json.encode(told))

    for name, sent in rows.items():
        for here, there in zip(getattr(arrived, name), sent, strict=True):
            assert msgspec.structs.asdict(here) == msgspec.structs.asdict(there)
