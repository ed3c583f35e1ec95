"""The table of the results."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from autoscale.arms import ORACLE

_HEAD = (
    "| Scales on | Requests within the SLA | of the oracle's | Pod-minutes | of the oracle's"
    " | Turns | Most pods |\n|---|---|---|---|---|---|---|\n"
)


def page(raw: Mapping[str, Any]) -> str:
    """Write one table for each ramp and cold start, and one of settled beside tuned pods."""
    pod = raw["pod"]
    text = (
        "# Autoscalers on one ramp\n\n"
        "`PYTHONPATH=benchmarks python -m autoscale` writes this page.\n\n"
        f"One pod serves {pod['capacity_rps']:.2f} requests a second within the SLA (λ\\*), and has"
        f" {pod['in_flight']:.1f} inside at four fifths of it.\n"
    )
    compared = [row for row in raw["rows"] if not row["checks"]]
    for (ramp, cold_s), found in groupby(compared, lambda row: (row["ramp"], row["cold_s"])):
        rows = [*found]
        (oracle,) = (row for row in rows if row["arm"] == ORACLE)
        text += f"\n## From {ramp}, {cold_s:.0f} s from creation to readiness\n\n{_HEAD}"
        text += "".join(_line(row, oracle) for row in rows)
    text += "\n## Settled pods beside tuned ones\n\nFrom one to three pods, 120 s, one seed.\n\n"
    text += "| Scales on | Pods | Requests within the SLA | Pod-minutes | Turns |\n"
    text += "|---|---|---|---|---|\n"
    for row in (row for row in raw["rows"] if row["checks"]):
        text += (
            f"| {row['arm']} | {'tuned' if row['is_tuned'] else 'settled'} |"
            f" {row['attained']:.2%} | {row['pod_minutes']:.0f} | {row['turns']:.0f} |\n"
        )
    return text


def _line(row: Mapping[str, Any], oracle: Mapping[str, Any]) -> str:
    attained, minutes = row["attained"], row["pod_minutes"]
    return (
        f"| {row['arm']} | {attained:.2%} | {attained / oracle['attained']:.2%} | {minutes:.0f}"
        f" | {minutes / oracle['pod_minutes']:.2f} | {row['turns']:.1f} | {row['most']} |\n"
    )


def real_page(raw: Mapping[str, Any]) -> str:
    """Write one table of the autoscalers on the real ramp."""
    ramp, rows = raw["ramp"], raw["rows"]
    (oracle,) = (row for row in rows if row["arm"] == ORACLE)
    minutes = sum(value for name, value in ramp.items() if name.endswith("_s")) / 60
    lines = [
        f"| {row['arm']} | {row['attained']:.2%} | {row['attained'] / oracle['attained']:.2%}"
        f" | {row['failed']} | {row['pod_minutes']:.0f}"
        f" | {row['pod_minutes'] / oracle['pod_minutes']:.2f} | {row['turns']} | {row['most']} |"
        for row in rows
    ]
    return (
        "# A real ramp\n\n`PYTHONPATH=benchmarks:tests python -m autoscale.real` writes this page"
        " and says what of it is real.\n\n"
        f"One pod serves {raw['capacity_rps']:.2f} requests a second within the SLA (λ\\*), says"
        f" the tuner; a ramp of {minutes:.0f} minutes goes from 0.6 to 3 times of it and back,"
        f" {oracle['offered']} requests to each service. A pod takes about"
        f" {raw['cold_s']:.0f} s to start. KEDA looks every 15 s, and nothing scales in before"
        f" {raw['down_s']} s have passed.\n\n"
        "| Scales on | Requests within the SLA | of the oracle's | not answered | Pod-minutes"
        " | of the oracle's | Turns | Most pods |\n|---|---|---|---|---|---|---|---|\n"
        + "\n".join(lines)
        + "\n"
    )
