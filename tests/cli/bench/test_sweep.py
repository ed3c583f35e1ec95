"""A sweep changes limits live, reads percentiles honestly, and writes one page."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from paceline_api.units import seconds
from paceline_cli.__main__ import main
from paceline_cli.bench.grid import Setting, grid, thinned
from paceline_cli.bench.measures import measure
from paceline_cli.bench.run_report import progress
from paceline_cli.bench.served_copy import REQUEST_TIMEOUT_S, changed_words, write_served_copy
from paceline_cli.bench.sweep import (
    SETTLE_S,
    LiveLimits,
    SweepError,
    planned_time,
    settled,
)
from paceline_cli.bench.sweep_points import SWEEP_SCHEMA, Point, Sweep, TunedPoint, read_sweeps
from paceline_cli.bench.sweep_report import show, write_report
from paceline_cli.bench.traffic_choice import ChosenTraffic, TrafficChoice, chosen_traffic
from paceline_cli.manifest import load
from paceline_cli.traffic.corpus import help_topics
from paceline_cli.traffic.prompts import SharedPrefix
from paceline_cli.traffic.record import ClientRecord
from paceline_testing.telemetry import a_limits, a_telemetry
from paceline_tuner.pods import PodRefusedError
from paceline_tuner.service_spec import SLA
from paceline_tuner.service_target import PodTarget
from paceline_tuner.telemetry import LimitsAnswer, LimitValues, Telemetry

QUICKSTART = Path(__file__).parents[3] / "examples/quickstart.yaml"
POD = PodTarget(name="a-0", admin_url="http://127.0.0.1:1", token="t")


def a_record(at: float = 0.0, *, gap_s: float = 0.1, outcome: str = "ok") -> ClientRecord:
    is_ok = outcome == "ok"
    return ClientRecord(
        planned_at=at,
        sent_at=at,
        token_ats=tuple(at + 0.2 + gap_s * i for i in range(5)) if is_ok else (),
        finished_at=at + 0.2 + gap_s * 4,
        prompt_tokens=20,
        output_tokens=5 if is_ok else 0,
        outcome="ok" if is_ok else "timeout",
    )


TARGETS = SLA(ttft_p99_ms=15_000.0, itl_p99_ms=500.0)


def a_sweep() -> Sweep:
    points = []
    for setting in grid(batch_size=32, token_budget=2048, per_axis=3):
        slow = 1 + 10 / setting.place
        records = [a_record(float(i), gap_s=0.1 * slow) for i in range(20)]
        points.append(Point(setting, measure(records, 0.0, 20.0, TARGETS)))
    lost = [a_record(float(i), outcome="timeout") for i in range(20)]
    points[0] = replace(points[0], measured=measure(lost, 0.0, 20.0, TARGETS))
    chosen = TunedPoint(12, 192, 480.0, "Tracking", measure([a_record(1.0)], 0.0, 20.0, TARGETS))
    return Sweep(
        schema=SWEEP_SCHEMA,
        name="<quick> & start",
        model="builtin://m",
        machine="2 cores",
        device="cpu",
        sla=TARGETS,
        note="",
        traffic="as usual",
        seed=1,
        warmup="none",
        points=tuple(points),
        chosen=chosen,
    )


@given(warmup_s=st.floats(0, 100), requests=st.integers(1, 60))
@settings(deadline=None, max_examples=20)
def test_the_tuner_is_measured_on_the_requests_of_every_point(
    warmup_s: float, requests: int
) -> None:
    """However long it settles before: a star on other requests says nothing."""
    choice = TrafficChoice(rate_rps=2.0, requests=requests, warmup_s=warmup_s)
    point = chosen_traffic(choice)
    star = settled(point)

    def measured(chosen: ChosenTraffic) -> list[tuple[float, str, int]]:
        planned = chosen.requests(help_topics(), 1)[-requests:]
        return [
            (round(one.at_s - chosen.stretch.warmup_s, 6), one.prompt, one.max_tokens)
            for one in planned
        ]

    assert measured(star) == measured(point)
    assert len(measured(point)) == requests
    assert star.stretch.warmup_s == max(warmup_s, SETTLE_S)
    assert star.stretch.seconds == point.stretch.seconds


def test_a_sweep_says_how_long_it_takes() -> None:
    """Before it begins."""
    words = planned_time(chosen_traffic(TrafficChoice(rate_rps=2.0, requests=400)), 13)

    assert words.startswith("13 points and the tuner's, 220 s each: about 51 minutes; open loop")


def test_the_tuner_may_have_longer_to_settle() -> None:
    """What is measured stays the same, and the time that it takes is told."""
    point = chosen_traffic(TrafficChoice(rate_rps=2.0, requests=400))

    assert settled(point, 300.0).stretch == replace(point.stretch, warmup_s=300.0)
    assert "about 56 minutes" in planned_time(point, 13, settle_s=300.0)


@pytest.mark.parametrize(
    ("phase", "is_told"), [("Tracking", False), ("Transition", True), ("Learning", True)]
)
def test_a_tuner_that_had_not_settled_is_told(tmp_path: Path, phase: str, is_told: bool) -> None:
    """In the terminal and on the page, with what gives it more time."""
    sweep = a_sweep()
    assert sweep.chosen is not None
    sweep = replace(sweep, chosen=replace(sweep.chosen, phase=phase))

    told = f"had not settled at the end (phase {phase}): a longer --settle"
    assert (told in shown(sweep)) == is_told
    assert (told in write_report(sweep, tmp_path).read_text()) == is_told


def shown(sweep: Sweep) -> str:
    console = Console(width=80)
    with console.capture() as captured:
        show(sweep, console)
    return captured.get()


def test_a_sweep_ends_with_its_knees_and_the_tuners_point_in_the_terminal() -> None:
    """With what the marks and brackets say, and which rows the client bent."""
    sweep = a_sweep()
    points = (*sweep.points[:-1], replace(sweep.points[-1], client_lagged=True))

    text = shown(replace(sweep, points=points))

    rows = [line.split("│")[1:4] for line in text.splitlines() if "│" in line]
    marked = [[cell.strip() for cell in row] for row in rows if row[0].strip()]
    knee = sweep.knee("token_budget")
    assert knee is not None
    assert marked == [
        ["knee", "8", "2048"],
        ["knee", "32", f"{knee.setting.token_budget}"],
        ["the client lagged", "32", "2048"],
        ["★", "12", "192"],
    ]
    assert "The knee of a limit is" in text
    assert "★ is the tuner's own point." in text
    assert "In brackets: 95 % intervals" in text
    assert "…" not in text


def test_a_page_says_where_the_client_lagged_behind_the_tuner(tmp_path: Path) -> None:
    """The star is held against the points: its latencies too may be partly the client's."""
    sweep = a_sweep()
    assert sweep.chosen is not None
    sweep = replace(sweep, chosen=replace(sweep.chosen, client_lagged=True))

    assert "★ client lagged" in write_report(sweep, tmp_path).read_text()


def test_what_is_served_otherwise_than_declared_is_said() -> None:
    """Longer targets, a larger capacity, and prompts that share nothing change the figures."""
    spec = load(QUICKSTART).spec
    roomy = load(QUICKSTART.parents[1] / "benchmarks/batching.yaml").spec
    turns = TrafficChoice(turns=3)

    assert changed_words(roomy, TrafficChoice(), 1.0) == ""
    assert "2.5 times as long" in changed_words(roomy, TrafficChoice(), 2.5)
    assert "Prefix caching is off" in changed_words(roomy, turns, 1.0)
    shared = TrafficChoice(shared_prefix=SharedPrefix(512, 4))
    assert "Prefix caching is off" in changed_words(roomy, shared, 1.0)
    assert changed_words(spec, TrafficChoice(), 1.0) == (
        "The engine has a capacity of batch 64 and 2,048 tokens, where the manifest declares"
        " 32 and 2,048."
    )


def test_progress_says_of_what_it_is() -> None:
    """Which point of how many."""
    console = Console(width=120, force_terminal=True, legacy_windows=False)
    with console.capture() as captured, progress(console, 2, "point 3 of 13") as on_record:
        on_record(a_record())
        on_record(a_record(outcome="timeout"))

    assert "point 3 of 13: ended, 1 of them unanswered" in captured.get()


def test_the_knee_is_the_smallest_limit_that_is_as_good_as_the_best() -> None:
    """Beyond it latency is paid for nothing."""
    sweep = a_sweep()
    knee = sweep.knee("batch_size")

    assert knee is not None
    assert knee.setting.batch_size == 8
    assert replace(sweep, points=()).knee("batch_size") is None


def test_each_axis_moves_one_limit_and_a_step_never_has_less_than_a_token_a_row() -> None:
    """The engine would raise the budget to the batch, and the point would not be what it says."""
    tried = grid(batch_size=128, token_budget=32, per_axis=9)

    assert [s.batch_size for s in tried if s.axis == "batch_size"] == [1, 2, 4, 8, 16, 32, 64]
    assert [s.token_budget for s in tried if s.axis == "token_budget"][:2] == [64, 128]
    assert all(s.token_budget >= s.batch_size for s in tried)


@pytest.mark.parametrize(
    ("count", "kept"),
    [(1, (64,)), (2, (1, 64)), (3, (1, 8, 64)), (7, (1, 2, 4, 8, 16, 32, 64))],
)
def test_thinning_keeps_both_ends(count: int, kept: tuple[int, ...]) -> None:
    """The ends are where curves say most."""
    assert thinned((1, 2, 4, 8, 16, 32, 64), count) == kept


class FakePods:
    """A pod that takes limits, or does not."""

    def __init__(self, *, epoch: int = 7, most: int = 64, refuses: bool = False) -> None:
        self.epoch = epoch
        self.most = most
        self.refuses = refuses
        self.sent: list[Mapping[str, object]] = []
        self.asked: list[int] = []

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        assert pod == POD
        self.asked.append(since)
        return a_telemetry(1.0, limits=a_limits(epoch=self.epoch))

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        self.sent.append(body)
        if self.refuses:
            raise PodRefusedError(pod.name, 422, "no")
        size, budget = body["max_batch_size"], body["token_budget"]
        assert isinstance(size, int)
        assert isinstance(budget, int)
        held = LimitValues(min(size, self.most), budget)
        answer = a_limits(epoch=self.epoch + 1)
        return LimitsAnswer(held, held, held, answer.capacity, self.epoch + 1)


async def test_limits_are_changed_live_under_the_next_epoch_with_the_pacer_off() -> None:
    """The curve is of the two limits alone."""
    pods = FakePods(epoch=7)

    await LiveLimits(pods).hold(POD, Setting("batch_size", 16, 512))

    (body,) = pods.sent
    assert (body["max_batch_size"], body["token_budget"], body["epoch"]) == (16, 512, 8)
    assert body["step_target_ms"] is None


async def test_records_are_not_read_twice() -> None:
    """Only numbers that the pod gave are asked for; it refuses others."""
    pods = FakePods()
    limits = LiveLimits(pods)

    await limits.hold(POD, Setting("batch_size", 16, 512))
    await limits.hold(POD, Setting("batch_size", 8, 512))

    assert pods.asked == [0, a_telemetry(1.0).next]


@pytest.mark.parametrize(
    ("pods", "words"),
    [(FakePods(refuses=True), "could not be set.*422"), (FakePods(most=8), "the pod took batch 8")],
    ids=["refused", "clamped"],
)
async def test_a_point_whose_limits_do_not_hold_is_an_error(pods: FakePods, words: str) -> None:
    """A curve of limits that were never there would be a lie."""
    with pytest.raises(SweepError, match=words):
        await LiveLimits(pods).hold(POD, Setting("batch_size", 16, 512))


def test_the_copy_has_room_for_the_grid_and_neither_sheds_nor_shares(tmp_path: Path) -> None:
    """All else is the manifest's."""
    write_served_copy(QUICKSTART, tmp_path / "out/service.yaml", mode="Observe", slowness=1)

    copied, declared = load(tmp_path / "out/service.yaml").spec, load(QUICKSTART).spec
    assert copied.engine.capacity.max_batch_size == 64
    assert copied.engine.capacity.max_token_budget == 2048
    assert copied.admission.shed_hopeless is False
    assert copied.engine.prefix_caching is False  # every point is sent the same prompts
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["service.yaml"]
    assert seconds(copied.admission.request_timeout) == REQUEST_TIMEOUT_S
    assert copied.tuning.mode == "Observe"
    assert (copied.model, copied.tuning.batch_size) == (declared.model, declared.tuning.batch_size)


def test_the_report_is_one_page_with_marks_for_what_is_not_a_percentile(tmp_path: Path) -> None:
    """Sent by mail, read without us."""
    page = write_report(a_sweep(), tmp_path / "out", png=tmp_path / "plots/sweep.png")

    text = page.read_text()
    assert text.count("<svg") == 1
    assert not re.search(r'(src|href)="(?!#)', text)
    assert "&lt;quick&gt; &amp; start" in text
    assert "max 200" in text  # TTFT P99 of 20 requests
    assert "no answer" in text
    assert 'class="chosen"' in text
    assert (tmp_path / "plots/sweep.png").read_bytes().startswith(b"\x89PNG")


def test_the_figures_are_there_for_a_program_too(tmp_path: Path) -> None:
    """JSON has no infinity: it is spelled."""
    write_report(a_sweep(), tmp_path)

    document = json.loads((tmp_path / "sweep.json").read_text())
    first = document["points"][0]
    assert first["setting"] == {"axis": "batch_size", "batch_size": 1, "token_budget": 2048}
    assert first["measured"]["outcomes"] == {"timeout": 20}
    assert first["measured"]["e2e"]["quantiles"][3]["ms"]["value"] == "inf"
    assert document["chosen"]["token_budget"] == 192


@pytest.mark.parametrize(
    "poor",
    [replace(a_sweep(), chosen=None), replace(a_sweep(), points=())],
    ids=["tuner", "points"],
)
def test_a_sweep_that_lacks_something_is_reported_all_the_same(tmp_path: Path, poor: Sweep) -> None:
    """A run that went wrong is the one whose report is read."""
    assert write_report(poor, tmp_path).exists()


def test_sweeps_of_several_machines_stand_in_one_table(tmp_path: Path) -> None:
    """Each with its knee and the tuner's choice; what was written is read again."""
    other = replace(a_sweep(), device="NVIDIA H100 80GB HBM3")
    write_report(other, tmp_path / "other")
    (read,) = read_sweeps([tmp_path / "other/sweep.json"])

    page = write_report(a_sweep(), tmp_path, others=[read])

    assert read == other
    assert "<td>NVIDIA H100 80GB HBM3</td><td>batch 8</td>" in page.read_text()
    assert "<td>2 cores</td><td>batch 8</td>" in page.read_text()


def test_sweeps_that_were_made_elsewhere_become_a_table(tmp_path: Path) -> None:
    """Nothing is measured again; each machine keeps the traffic that it had."""
    devices = ("NVIDIA H100 80GB HBM3", "NVIDIA L4")
    for device in devices:
        write_report(replace(a_sweep(), device=device), tmp_path / device)
    paths = [str(tmp_path / device / "sweep.json") for device in devices]

    result = CliRunner().invoke(main, ("bench", "machines", *paths))

    assert result.exit_code == 0, result.output
    assert all(f"{device}: as usual" in result.output for device in devices)
    assert result.output.count("tokens 192") == len(devices)
    assert "…" not in result.output


def test_sweeps_of_two_models_are_no_table(tmp_path: Path) -> None:
    """Their machines are not what makes the difference."""
    for model in ("builtin://a", "builtin://b"):
        write_report(replace(a_sweep(), model=model), tmp_path / model[-1])

    result = CliRunner().invoke(
        main, ("bench", "machines", f"{tmp_path}/a/sweep.json", f"{tmp_path}/b/sweep.json")
    )

    assert result.exit_code == 2
    assert "builtin://a and builtin://b" in result.output


@pytest.mark.parametrize("option", [("--points", "0"), ("--seconds", "0"), ("--rate", "0")])
def test_an_option_out_of_its_range_is_refused(option: tuple[str, str]) -> None:
    """Before anything starts."""
    result = CliRunner().invoke(main, ("bench", "sweep", "-f", str(QUICKSTART), *option))

    assert result.exit_code == 2
    assert option[0] in result.output


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    """As by every command."""
    result = CliRunner().invoke(
        main, ("bench", "sweep", "-f", "nowhere.yaml", "--out", str(tmp_path))
    )

    assert result.exit_code == 1
    assert result.output == "Error: nowhere.yaml: no such file\n"
