"""Every query of the dashboards finds series in what a sidecar and the operator expose.

The samples are those of real scrapes; Prometheus's own engine evaluates, in promtool.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from paceline_operator.metrics import Metrics
from paceline_testing.reports import a_change, a_pod_report, a_report
from paceline_testing.run_promtool import run_promtool
from paceline_testing.running_sidecar import start_sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine, a_step
from paceline_testing.services import a_live_service
from paceline_testing.used_sidecar import use_everything, value
from paceline_testing.waiting import wait_until
from paceline_tuner.service_report import ChangeOutcome, PredictionCheck, TokenCost

CHART = Path(__file__).parents[2] / "charts" / "paceline"
DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))
MINUTES = 30
HOME, SERVICE, POD = "default", "quick", "quick-5c9f7d8b6-x2k4q"
CHOSEN = {"namespace": HOME, "service": SERVICE, "pod": POD, "model": "scripted"}
"""What a person chose at the top of a dashboard."""


def a_used_operator() -> Metrics:
    """One that leads, tunes a service that is not well, and has had trouble of each kind."""
    metrics, now = Metrics(), datetime(2026, 1, 1, 12, tzinfo=UTC)
    check = PredictionCheck(10.0, 12.0, 0.2)
    outcome = ChangeOutcome(of=1.0, steps=20, step_ms=check, ttft_ms=check, capacity_rps=check)
    pods = (
        a_pod_report(
            name=POD,
            phase="Backoff",
            is_swinging=True,
            outcome=outcome,
            last_change=a_change(pod=POD, binding="SLA:itl"),
        ),
        a_pod_report(name="other", last_change=a_change(pod="other")),
    )
    report = a_report(pods=pods, acknowledged=False, cost=TokenCost(5.0, 1.0))
    conditions = [
        {"type": kind, "status": "False", "reason": "Because", "message": "it is so"}
        for kind in ("Ready", "SLAMet")
    ]
    rollout = {"phase": "Canary", "since": "2026-01-01T11:00:00Z"}
    status = {"conditions": conditions, "rollout": rollout}

    metrics.of_services.show_reports({f"{HOME}/{SERVICE}": report})
    metrics.of_services.show_statuses([a_live_service() | {"status": status}], now)
    metrics.count_outcomes(report)
    metrics.experiment_verdict.labels(f"{HOME}/{SERVICE}", "Better").set(1)
    metrics.api_requests.labels("get", "200").inc()
    metrics.reconcile_duration.observe(0.1)
    metrics.tuning_rounds.labels("ok").inc()
    for counter in (metrics.watch_starts, metrics.watch_pauses):
        counter.labels("inferenceservices").inc()
    return metrics


@pytest.fixture(scope="module")
def series() -> list[dict[str, str]]:
    """Both scrapes as Prometheus would keep them, in promtool's notation."""
    folder = Path(tempfile.mkdtemp(prefix="pl-"))  # short: a socket's path may have 107 bytes
    alone = [a_step(decode=decode) for decode in (4, 32, 128, 1024)]
    script = Script(steps=[*alone, a_step(decode=4, prefill=100), a_step(decode=0, prefill=100)])
    with ScriptedEngine(folder, script) as engine:
        sidecar = start_sidecar(folder)
        try:
            wait_until(sidecar.ready)
            use_everything(sidecar, engine)
            batch = {"model": "scripted", "prompt": "Hi", "service_tier": "flex"}
            assert sidecar.public.post("/v1/completions", json=batch).status_code == 200
            in_time = {"lane": "batch", "result": "met"}
            wait_until(lambda: value(sidecar, "paceline_prompt_class_requests_total", **in_time))
            pod = sidecar.admin.get("/metrics").text
        finally:
            sidecar.leave()
            sidecar.join()
    shutil.rmtree(folder)
    operator = generate_latest(a_used_operator().registry).decode()
    at_home = {"namespace": HOME, "pod": POD}
    return [*_kept(pod, at_home), *_kept(operator, {"namespace": "system", "pod": "paceline-0"})]


def _kept(scrape: str, added: dict[str, str]) -> Iterator[dict[str, str]]:
    """The samples of a scrape, each minute for half an hour: counters grow, gauges stay."""
    for family in text_string_to_metric_families(scrape):
        grows = family.type in {"counter", "histogram"}
        for sample in family.samples:
            # As with `honorLabels`: what a process says of itself stands.
            labels = ",".join(
                f"{name}={json.dumps(text)}" for name, text in {**added, **sample.labels}.items()
            )
            values = f"0+{sample.value}x{MINUTES}" if grows else f"{sample.value}x{MINUTES}"
            yield {"series": f"{sample.name}{{{labels}}}", "values": values}


def queries(dashboard: Path) -> Iterator[tuple[str, str]]:
    """Title and query of every target and annotation."""
    whole = json.loads(dashboard.read_text())
    for panel in _panels(whole):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for annotation in whole.get("annotations", {"list": []})["list"]:
        yield annotation["name"], annotation["target"]["expr"]
    for variable in whole["templating"]["list"][1:]:
        # What `label_values` asks for.
        yield f"${variable['name']}", _selected(variable["query"]["query"])


def _panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Leave the headings of rows out."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def _selected(query: str) -> str:
    return query.removeprefix("label_values(").rpartition(",")[0]


def filled(query: str, chosen: dict[str, str]) -> str:
    """The query as Grafana sends it."""
    for name, choice in {**chosen, "__rate_interval": "5m"}.items():
        query = query.replace(f"${name}", choice)
    return query


def evaluated(
    series: list[dict[str, str]], expressions: list[str], folder: Path
) -> "subprocess.CompletedProcess[str]":
    """Let promtool expect at least one number of each."""
    wanted: list[dict[str, Any]] = [
        {
            # What is not a number equals nothing, not even itself.
            "expr": f"count(({expression}) == ({expression})) > bool 0",
            "eval_time": f"{MINUTES}m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for expression in expressions
    ]
    case = {"interval": "1m", "input_series": series, "promql_expr_test": wanted}
    rules = str(CHART / "files" / "rules.yaml")
    path = folder / "cases.yaml"
    path.write_text(json.dumps({"rule_files": [rules], "tests": [case]}))
    return run_promtool("test", "rules", path)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_finds_series(
    series: list[dict[str, str]], dashboard: Path, tmp_path: Path
) -> None:
    """A panel, an annotation or a choice that finds nothing on a pod in use would never show."""
    chosen = CHOSEN if dashboard.stem == "pod" else dict.fromkeys(CHOSEN, ".*")

    done = evaluated(series, [filled(query, chosen) for _, query in queries(dashboard)], tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_query_of_what_nobody_exposes_fails(series: list[dict[str, str]], tmp_path: Path) -> None:
    """The check itself tells an empty panel."""
    done = evaluated(series, ['paceline_ready{pod="nobody"}'], tmp_path)

    assert done.returncode != 0
