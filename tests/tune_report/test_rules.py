from dataclasses import replace

from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import RequestRecord
from tune_report.arms.reading import Reading
from tune_report.arms.rules import Aimd, Gradient2, TensorRt

READING = Reading(
    batch=256,
    budget=2048,
    running=200,
    waiting=0,
    epoch=1,
    max_batch=1024,
    max_budget=8192,
    itl_p99_ms=40.0,
    tpot_p99_ms=30.0,
    ttft_p99_ms=200.0,
    newest=(),
)
ITL_50 = SLA(ttft_p99_ms=1000.0, itl_p99_ms=50.0)


def ended(prompt: int, output: int, tpot_ms: float) -> RequestRecord:
    return RequestRecord(1, 0.0, 1.0, prompt, output, "ok", tpot_ms=tpot_ms)


def test_aimd_grows_while_pace_is_kept_and_shrinks_both_when_not() -> None:
    slow = replace(READING, itl_p99_ms=60.0)

    assert Aimd().limits(READING, ITL_50) == (260, 2112)
    assert Aimd().limits(slow, ITL_50) == (230, 1433)


def test_aimd_leaves_pace_alone_when_only_ttft_is_missed() -> None:
    late = replace(READING, ttft_p99_ms=5000.0)

    assert Aimd().limits(late, ITL_50)[0] > READING.batch


def test_gradient2_grows_at_an_even_pace_and_shrinks_when_tokens_slow_down() -> None:
    rule = Gradient2()
    even = replace(READING, newest=(ended(100, 10, 20.0),))
    slow = replace(READING, newest=(ended(100, 10, 80.0),))

    grown = [rule.limits(even, ITL_50)[0] for _ in range(20)][-1]
    shrunk = rule.limits(slow, ITL_50)[0]

    assert grown > READING.batch
    assert shrunk < grown


def test_gradient2_holds_where_less_than_half_of_its_limit_runs() -> None:
    idle = replace(READING, running=20, newest=(ended(100, 10, 20.0),))

    assert Gradient2().limits(idle, ITL_50) == (256, 2048)


def test_tensorrt_takes_the_power_of_two_above_a_full_batch_and_its_prompts() -> None:
    reading = replace(READING, batch=100, newest=(ended(1000, 200, 20.0),))

    assert TensorRt().limits(reading, ITL_50) == (100, 1024)
    assert TensorRt().limits(replace(reading, newest=()), ITL_50) == (100, 2048)
