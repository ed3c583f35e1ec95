"""The simulated engine decides as the real scheduler does, step by step."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline_engine.core.request import Request
from paceline_engine.pacing import NoPacer, StepShape
from paceline_engine.scheduling.request_table import RequestTable
from paceline_engine.scheduling.scheduler import ContinuousScheduler
from paceline_sim.requests import Requests
from paceline_sim.simulated_engine import SimulatedEngine
from paceline_testing.simulated import PLAIN, a_list
from paceline_wire import Sampling
from paceline_wire.limits import Capacity, Limits
from paceline_wire.step_cost import chunk_attention

Row = tuple[float, int, int, int, int]

rows_of_requests = st.lists(
    st.tuples(
        st.floats(0, 0.6),
        st.integers(1, 90),
        st.integers(1, 40),
        st.just(0),
        st.sampled_from((0, 1)),
    ),
    min_size=1,
    max_size=24,
)


class ScriptedPacer(NoPacer):
    """Allows what the script says, over and over, and keeps what it was asked."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script
        self.shapes: list[StepShape] = []

    def token_total(self, shape: StepShape, limits: Limits) -> int:
        wanted = self.script[len(self.shapes) % len(self.script)]
        self.shapes.append(shape)
        return max(shape.decode, min(wanted, limits.token_budget))


def a_request(requests: Requests, number: int) -> Request:
    prompt = int(requests.prompt[number])
    return Request(
        id=str(number),
        token_ids=[0] * prompt,
        num_prompt_tokens=prompt,
        sampling=Sampling(max_tokens=int(requests.output[number]), ignore_eos=True),
        lane="batch" if requests.lane[number] else "interactive",
        number=number,
        turn_at=None if requests.turn_s is None else float(requests.turn_s[number]),
    )


def scheduled(
    requests: Requests,
    capacity: Capacity,
    limits: Limits,
    pacer: ScriptedPacer,
    ends: Sequence[float],
) -> list[dict[str, int]]:
    """Let the real scheduler serve the list, its steps ending when the simulated engine's did."""
    table = RequestTable(capacity, pacer, prefix_caching=False)
    scheduler = ContinuousScheduler(table, pacer)
    now, arrived = 0.0, 0
    steps: list[dict[str, int]] = []
    for end in ends:
        if table.num_running + table.num_waiting == 0:
            now = max(now, float(requests.arrival_s[arrived]))
        while arrived < len(requests) and requests.arrival_s[arrived] <= now:
            table.add(a_request(requests, arrived))
            arrived += 1
        plan = scheduler.schedule(limits, now)
        prefills = plan.batch.chunks[plan.batch.num_decodes :]
        attention = sum(int(chunk_attention(p.count, p.start)) for p in prefills)
        tokens: list[Any] = [0 if piece.samples else None for piece in plan.batch.chunks]
        table.launched(plan.batch)
        scheduler.settle(plan.batch, tokens, end)
        steps.append(
            {
                "decode": plan.batch.num_decodes,
                "prefill": sum(piece.count for piece in prefills),
                "context": plan.context,
                "attention": attention,
                "preemptions": plan.preemptions,
                "paced_tokens": plan.token_total,
                "kv_used": table.blocks.pool.num_used,
                "running": table.num_running,
                "waiting": table.num_waiting,
                "waiting_tokens": table.num_waiting_tokens,
            }
        )
        now = end
    assert table.num_running + table.num_waiting == 0
    return steps


@st.composite
def chance_limits(draw: st.DrawFn) -> Limits:
    batch = draw(st.integers(1, 12))
    pace_ms = draw(st.none() | st.floats(5.0, 50.0))
    return Limits(batch, batch + draw(st.integers(0, 120)), pace_tpot_ms=pace_ms)


@settings(max_examples=100, deadline=None)
@given(
    rows=rows_of_requests,
    limits=chance_limits(),
    blocks=st.integers(9, 60),
    script=st.lists(st.integers(1, 140), min_size=1, max_size=5),
    delays_s=st.none() | st.lists(st.floats(0, 2), min_size=24, max_size=24),
)
@example(  # the batch lane is given more than it may have once it turns out to be alone
    rows=[(0.0, 1, 2, 0, 1), (0.0, 1, 4, 0, 0), (0.0, 6, 1, 0, 0), (0.0, 6, 1, 0, 0)],
    limits=Limits(2, 7),
    blocks=9,
    script=[7],
    delays_s=None,
)
def test_every_step_is_the_schedulers(
    rows: list[Row],
    limits: Limits,
    blocks: int,
    script: list[int],
    delays_s: list[float] | None,
) -> None:
    """Steps, preemptions, blocks and what the pacer is asked, however tight all of it is.

    Also where requests have their turns in another order than that of their arrival.
    """
    capacity = Capacity(12, 256, blocks, 16, 256)
    requests = a_list(rows)
    if delays_s is not None:
        turn_s = requests.arrival_s + np.array(delays_s[: len(rows)])
        requests = replace(requests, turn_s=turn_s)
    pacer, theirs = ScriptedPacer(script), ScriptedPacer(script)
    engine = SimulatedEngine(PLAIN, requests, capacity=capacity, limits=limits, pacer=pacer, seed=0)

    engine.run_until(3600.0)

    steps = engine.steps
    expected = scheduled(requests, capacity, limits, theirs, steps["at"].tolist())
    names = list(expected[0])
    assert [{n: int(step[n]) for n in names} for step in steps] == expected
    asked = [
        (s.decode, s.context, s.prefill_wanted, list(map(tuple, s.prompts))) for s in pacer.shapes
    ]
    assert asked == [
        (s.decode, s.context, s.prefill_wanted, list(map(tuple, s.prompts))) for s in theirs.shapes
    ]
    assert [s.slack_ms or 0.0 for s in pacer.shapes] == pytest.approx(
        [s.slack_ms or 0.0 for s in theirs.shapes], abs=1e-6
    )
