"""The comparison of ways of batching: figures that are read honestly, on one page."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from paceline_cli.__main__ import main
from paceline_cli.bench.arms import STATIC_WAIT_S, arms
from paceline_cli.bench.compare import (
    CompareOptions,
    line,
    longest_wait_s,
    planned_time,
    table,
)
from paceline_cli.bench.compare_report import write_report
from paceline_cli.bench.comparison import COMPARE_SCHEMA, ArmResult, Comparison, Series, series_of
from paceline_cli.bench.measures import measure
from paceline_cli.bench.served_copy import REQUEST_TIMEOUT_S
from paceline_cli.bench.traffic_choice import TrafficChoice, chosen_traffic
from paceline_cli.bench.trial import Trial
from paceline_cli.traffic.client_health import ClientHealth
from paceline_cli.traffic.record import ClientRecord
from paceline_engine.settings import Settings
from paceline_testing.quickstart import QUICKSTART
from paceline_tuner.service_spec import SLA

TARGETS = SLA(ttft_p99_ms=500.0, itl_p99_ms=150.0)


def a_record(at: float, *, is_ok: bool = True) -> ClientRecord:
    return ClientRecord(
        planned_at=at,
        sent_at=at,
        token_ats=tuple(at + 0.2 + 0.1 * i for i in range(5)) if is_ok else (),
        finished_at=at + 0.6,
        prompt_tokens=20,
        output_tokens=5 if is_ok else 0,
        outcome="ok" if is_ok else "timeout",
    )


def a_trial(arm: str, padding: int, load: float = 1.0) -> tuple[ArmResult, Series]:
    is_slow = arm == "static"
    records = [a_record(float(n), is_ok=n > 1 or not is_slow) for n in range(20)]
    measures = measure(records, 0.0, 20.0, TARGETS)
    trial = Trial(measures, ClientHealth(1, 1, 1, 10), tuple(records), 0.0, 20.0, 0)
    return ArmResult(arm, load, measures, padding, 300), series_of(arm, load, trial)


TRIALS = [
    a_trial(name, padding, load)
    for name, padding in (("static", 300), ("dynamic, mixed", 100), ("continuous", 0))
    for load in (0.5, 1.0)
]


def a_comparison() -> Comparison:
    return Comparison(
        schema=COMPARE_SCHEMA,
        model="builtin://<m>",
        machine="2 cores",
        sla=TARGETS,
        note="",
        traffic="as usual",
        seed=1,
        warmup="none",
        arms={arm.name: arm.what for arm in arms(0.1)},
        found=tuple(result for result, _ in TRIALS),
        series=tuple(series for _, series in TRIALS),
    )


def test_the_page_and_the_figures_name_every_way_of_batching(tmp_path: Path) -> None:
    """One row each and load; text from outside is escaped; a lost request waits for ever."""
    page = write_report(a_comparison(), tmp_path, png=tmp_path / "c.png")
    text = page.read_text()
    figures = json.loads((tmp_path / "compare.json").read_text())

    assert all(f"<td>{result.arm}</td>" in text for result, _ in TRIALS)
    assert "builtin://&lt;m&gt;" in text
    assert text.count("<svg") == 2
    static = figures["found"][0]["measured"]
    assert static["ttft"]["quantiles"][2]["ms"]["value"] == "inf"
    assert "no answer" in text
    at_s, ttft_ms = figures["series"][0]["by_name"]["TTFT"]
    assert len(at_s) == len(ttft_ms) == 80
    assert "inf" in ttft_ms  # the first two requests of static batching
    assert ttft_ms[-1] == pytest.approx(200.0)
    assert {path.name for path in tmp_path.glob("*.png")} == {"c.png", "c-time.png"}


def test_padding_is_a_share_of_all_that_was_computed() -> None:
    """300 of 600 tokens are half."""
    shares = [found.padding_share for found in a_comparison().found if found.load == 1.0]

    assert shares == [0.5, 0.25, 0.0]


def test_the_table_shows_goodput_throughput_padding_and_latencies() -> None:
    """Never one number."""
    text = Console(width=160)
    with text.capture() as captured:
        text.print(table(a_comparison()))

    shown = captured.get()
    for name in ("attainment %", "goodput tok/s", "all tok/s", "padding", "TTFT p99", "E2E p99"):
        assert name in shown
    assert "25%" in shown
    assert "…" not in shown


def test_the_table_and_the_line_say_where_the_client_lagged() -> None:
    """Its latencies are partly the client's."""
    result, _ = TRIALS[0]
    lagging = replace(result, client_lagged=True)
    text = Console(width=160)
    with text.capture() as captured:
        text.print(table(replace(a_comparison(), found=(lagging, result))))

    assert captured.get().count("the client lagged") == 1
    assert line(lagging).endswith("padding, the client lagged")
    assert line(result).endswith("padding")


def test_requests_may_take_longer_than_a_static_batch_waits_for_others() -> None:
    """Else the last of a run, which find nobody to fill their batch, would have no answer."""
    assert REQUEST_TIMEOUT_S >= 1.5 * STATIC_WAIT_S


def test_a_comparison_says_how_long_it_takes() -> None:
    """The last batches of static batching, which wait for others, are in it."""
    ways = arms(0.1)
    traffic = chosen_traffic(TrafficChoice(rate_rps=2.0, requests=400))  # 220 s with its warm-up
    whole = {arm.name: {0.5: traffic, 1.0: traffic} for arm in ways}
    without_static = whole | {"static": {}}
    closed = {arm.name: {1.0: chosen_traffic(TrafficChoice(concurrency=8))} for arm in ways}

    told = [planned_time(ways, left) for left in (whole, without_static, closed)]

    assert told == [
        f"5 ways of batching; about {(10 * 220 + 2 * STATIC_WAIT_S) / 60:.0f} minutes are left",
        "5 ways of batching, 1 of them measured before; about 29 minutes are left",
        "5 ways of batching; 5 trials are left",
    ]


def test_the_engine_understands_every_way_of_batching() -> None:
    """A setting that it does not know would keep it from starting."""
    told = {
        arm.name: Settings.model_validate({
            name.removeprefix("PACELINE_ENGINE_").lower(): value
            for name, value in arm.engine.items()
        })
        for arm in arms(0.3)
    }  # fmt: skip

    assert [each.scheduling for each in told.values()] == 3 * ["dynamic"] + 2 * ["continuous"]
    assert told["static"].dynamic_max_wait_s == STATIC_WAIT_S
    assert told["dynamic, mixed"].dynamic_max_wait_s == 0.3
    assert arms(0.3)[2].engine["PACELINE_ENGINE_DYNAMIC_BUCKETS"] == "true"  # manifests may differ
    assert [each.dynamic_buckets for each in told.values()] == [False, False, True, True, True]


@pytest.mark.parametrize(("asked_s", "wait_s"), [(None, 0.25), (0.5, 0.5)], ids=["its", "ours"])
def test_dynamic_batches_wait_as_the_manifest_says(
    tmp_path: Path, asked_s: float | None, wait_s: float
) -> None:
    """Unless --max-wait says otherwise."""
    manifest = yaml.safe_load(QUICKSTART.read_text())
    manifest["spec"]["engine"] |= {"scheduling": "Dynamic", "dynamic": {"maxWait": "250ms"}}
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump(manifest))

    options = CompareOptions(path, tmp_path, TrafficChoice(), max_wait_s=asked_s)

    assert longest_wait_s(options) == wait_s


def test_a_bad_manifest_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """With the name of the file."""
    missing = tmp_path / "none.yaml"

    result = CliRunner().invoke(main, ["bench", "compare", "-f", str(missing)])

    assert result.exit_code != 0
    assert "none.yaml" in result.output
