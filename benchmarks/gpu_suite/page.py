"""The record as a page of Markdown. Pure."""

from collections.abc import Iterable, Sequence

from gpu_suite.predicted import Prediction
from gpu_suite.record import Figure, Part, Record
from gpu_suite.targets import Judged, judged

DRY = "dry run: no figure means anything"
_PREDICTED = "By the step-time model (`python -m step_work`), from launches and bytes alone."


def page_of(record: Record, predictions: Sequence[Prediction] = (), *, is_dry: bool) -> str:
    """Targets and predictions beside measured values, every figure, and what each part ran on."""
    lines = ["# The GPU suite", ""]
    if is_dry:
        lines += [f"**{DRY}**", ""]
    lines += ["Targets are for one H200 and bfloat16.", ""]
    lines += ["| | wanted | measured | |", "|---|---|---|---|"]
    lines += [_target_row(one, is_dry=is_dry) for one in judged(record)]
    lines += _predicted_lines(record, predictions)
    for part in record.parts.values():
        lines += ["", f"## {part.name}", "", *_part_lines(part)]
    return "\n".join(lines) + "\n"


def _predicted_lines(record: Record, predictions: Sequence[Prediction]) -> Iterable[str]:
    if not predictions:
        return
    yield from ("", "## Predicted", "", _PREDICTED, "")
    yield from ("| | predicted | measured | |", "|---|---|---|---|")
    for one in predictions:
        measured = record.value(one.name)
        likely, best, worst = (
            shown(each, "ms") for each in (one.likely_ms, one.best_ms, one.worst_ms)
        )
        is_within = measured is not None and one.best_ms <= measured <= one.worst_ms
        verdict = "not run" if measured is None else "within" if is_within else "**OUTSIDE**"
        value = "" if measured is None else shown(measured, "ms")
        yield f"| {one.name} | {likely} ({best} to {worst}) | {value} | {verdict} |"


def _part_lines(part: Part) -> Iterable[str]:
    yield f"{part.seconds:.0f} s on " + ", ".join(f"{k} {v}" for k, v in part.machine.items()) + "."
    for problem in part.problems:
        yield ""
        yield f"**Not whole:** {problem}"
    for broken in part.broken:
        yield ""
        yield f"**Broken:** {broken.name}: {broken.why}"
    for absent in part.absent:
        yield ""
        yield f"{absent.name}: {absent.why}"
    if part.figures:
        yield from ("", "| | measured | |", "|---|---|---|")
        yield from map(_figure_row, part.figures)


def _target_row(one: Judged, *, is_dry: bool) -> str:
    target = one.target
    bound = f"{'<=' if target.at_most else '>='} {shown(target.bound, target.unit)}"
    value = "" if one.value is None else shown(one.value, target.unit)
    verdict = "tried" if is_dry and value else one.verdict
    return f"| {target.name} | {bound} | {value or one.why_absent} | {verdict} |"


def _figure_row(figure: Figure) -> str:
    return f"| {figure.name} | {shown(figure.value, figure.unit)} | {figure.note} |"


def shown(value: float, unit: str) -> str:
    """A number with three digits or more, and its unit; shares as per cent."""
    if unit == "share":
        return f"{value:.1%}"
    digits = 0 if value == int(value) or abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f"{value:,.{digits}f} {unit}"
