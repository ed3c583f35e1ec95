"""The queries of examples/keda-from-zero.yaml, in each state that a service can be in.

KEDA takes the last pod away only while no trigger fails, and an absent metric makes one fail.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline_testing.examples import documents_of
from paceline_testing.run_promtool import run_promtool

RECOMMENDED = 'paceline_recommended_replicas{namespace="default",inferenceservice="chat"}'
ASKED = 'envoy_http_downstream_rq_total{envoy_http_conn_manager_prefix="http-8080",pod="envoy"}'
AT = "10m"


def triggers() -> dict[str, dict[str, Any]]:
    """The example's triggers by name."""
    (scaled,) = documents_of("keda-from-zero.yaml")
    return {each["name"]: each["metadata"] for each in scaled["spec"]["triggers"]}


STATES: dict[str, tuple[dict[str, str], float | None, bool | None]] = {
    "served and asked": ({RECOMMENDED: "3x40", ASKED: "0+1x40"}, 3.0, True),
    "served and not asked": ({RECOMMENDED: "1x40", ASKED: "7x40"}, 1.0, False),
    "never asked since its pods started": ({ASKED: "7x40"}, 0.0, False),
    "asked while the operator is away": ({ASKED: "0+1x40"}, None, True),
    "no pod, and its first request": ({ASKED: "7x38 8x2"}, None, True),
    "Envoy is not scraped": ({RECOMMENDED: "2x40"}, 2.0, None),
}
"""Series every 15 s; what is recommended, and whether somebody asked: None where the trigger fails.
"""


@pytest.mark.parametrize("state", STATES)
def test_a_trigger_fails_only_where_nobody_can_know(state: str, tmp_path: Path) -> None:
    """A loaded service keeps its pods whatever is absent; one that nobody asks loses the last."""
    series, recommended, asked = STATES[state]
    found = triggers()
    case = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            _expects(found["recommended"]["query"], recommended),
            _expects(f"({found['asked']['query']}) > bool 0", asked),
        ],
    }
    path = tmp_path / "case.yaml"
    path.write_text(json.dumps({"tests": [case]}))

    done = run_promtool("test", "rules", path)

    assert done.returncode == 0, done.stdout + done.stderr


def test_both_triggers_take_an_absent_metric_for_a_failure() -> None:
    """By KEDA's default it would be 0, and take pods away."""
    assert {each["ignoreNullValues"] for each in triggers().values()} == {"false"}


def _expects(query: str, value: float | None) -> dict[str, Any]:
    samples = [] if value is None else [{"labels": "{}", "value": float(value)}]
    return {"expr": query, "eval_time": AT, "exp_samples": samples}
