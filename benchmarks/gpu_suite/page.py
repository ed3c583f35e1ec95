"""The record as a page of Markdown. Pure."""

from collections.abc import Iterable

from gpu_suite.record import Figure, Part, Record
from gpu_suite.targets import Judged, judged

DRY = "dry run: no figure means anything"


def page_of(record: Record, *, is_dry: bool) -> str:
    """Targets beside measured values, then every figure, then what each part ran on."""
    lines = ["# The GPU suite", ""]
    if is_dry:
        lines += [f"**{DRY}**", ""]
    lines += ["Targets are for one H200 and bfloat16.", ""]
    lines += ["| | wanted | measured | |", "|---|---|---|---|"]
    lines += [_target_row(one, is_dry=is_dry) for one in judged(record)]
    for part in record.parts.values():
        lines += ["", f"## {part.name}", "", *_part_lines(part)]
    return "\n".join(lines) + "\n"


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
