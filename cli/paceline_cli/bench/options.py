"""Options of the command line that `bench` commands share, read into what they mean."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click


def duration(text: str) -> float:
    """Read seconds from a time as in a manifest, such as `500ms` or `2m`, or a bare number."""
    from paceline_api.units import seconds  # noqa: PLC0415 - help needs none of it

    try:
        found = float(text)
    except ValueError:
        try:
            found = seconds(text)
        except ValueError as problem:
            raise click.BadParameter(f"{problem}, or a number of seconds") from None
    if not 0 <= found < math.inf:
        raise click.BadParameter(f"{text} must be 0 or more")
    return found


def positive_duration(text: str) -> float:
    """Read seconds as `duration` does, but refuse none at all."""
    found = duration(text)
    if found == 0:
        raise click.BadParameter(f"{text} must be above 0")
    return found


_LENGTHS_HELP: Final = (
    "Log-normal lengths in tokens: the median, the sigma of the logarithm, bounds; a median alone"
    " is the length of all."
)


def traffic_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what says which requests are offered, and when."""
    for add in reversed(_TRAFFIC):
        command = add(command)
    return command


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add targets, which go before those of a manifest."""
    for add in reversed(_TARGETS):
        command = add(command)
    return command


def given_traffic(given: dict[str, Any]) -> Any:
    """Take the traffic out of a command's arguments."""
    from paceline_cli.bench import traffic_choice as read  # noqa: PLC0415 - help needs none of it

    texts = {
        "burst": read.burst,
        "prompt_tokens": read.token_lengths,
        "output_tokens": read.token_lengths,
        "shared_prefix": read.shared_prefix,
    }
    found = {name: given.pop(name) for name in _TRAFFIC_NAMES}
    is_uniform = found.pop("uniform")
    for name, reader in texts.items():
        try:
            found[name] = reader(found[name]) if found[name] is not None else None
        except ValueError as problem:
            raise click.BadParameter(
                str(problem), param_hint=f"--{name.replace('_', '-')}"
            ) from problem
    cv = found.pop("cv")
    _one_arrival(found, cv=cv, is_uniform=is_uniform)
    found["cv"] = 0.0 if is_uniform else 1.0 if cv is None else cv
    kept = {name: value for name, value in found.items() if value is not None}
    return read.TrafficChoice(**kept)


def given_targets(given: dict[str, Any]) -> Any:
    """Take the targets out of a command's arguments: a function of those that are declared."""
    from paceline_cli.bench.traffic_choice import with_targets  # noqa: PLC0415 - as above
    from paceline_tuner.service_spec import SLA  # noqa: PLC0415 - as above

    found = {name: given.pop(name) for name in ("ttft", "tpot", "itl", "e2e", "objective")}
    try:
        with_targets(SLA(), **found)
    except ValueError as problem:
        raise click.UsageError(str(problem)) from problem
    return lambda sla: with_targets(sla, **found)


def _one_arrival(found: dict[str, Any], *, cv: float | None, is_uniform: bool) -> None:
    """Refuse arrivals that contradict each other."""
    named = {
        "--cv": cv is not None,
        "--uniform": is_uniform,
        "--burst": found["burst"] is not None,
        "--trace": found["trace"] is not None,
        "--concurrency": found["concurrency"] is not None,
    }
    chosen = [name for name, is_given in named.items() if is_given]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} contradict each other: choose one")
    if found["rate_rps"] is not None and chosen in (["--burst"], ["--concurrency"]):
        raise click.UsageError(f"--rate and {chosen[0]} contradict each other: choose one")


_PATH: Final = click.Path(path_type=Path)
_POSITIVE: Final = click.FloatRange(0, min_open=True)
_LENGTHS: Final = "MEDIAN[:SIGMA[:MIN-MAX]]"
_PROMPTS: Final = "180:0.8:16-900"
_OUTPUTS: Final = "20:0.5:8-48"
_TRAFFIC: Final = (
    click.option("--rate", "rate_rps", type=_POSITIVE, help="Arrivals per second, on average."),
    click.option(
        "--cv", type=click.FloatRange(0, 20),
        help="Variation of the gaps between arrivals; 1, a Poisson process, if absent.",
    ),
    click.option("--uniform", is_flag=True, help="Evenly spaced: flatters static batching."),
    click.option("--burst", metavar="COUNT/TIME", help="200/30s: 200 at once, then silence."),
    click.option(
        "--trace", type=_PATH,
        help="Arrivals and lengths of a file: Azure, BurstGPT, Mooncake, or requests.jsonl. It is"
        " cut to about its first --requests, or to --seconds; texts and shared prefixes are not"
        " replayed.",
    ),
    click.option(
        "--concurrency", type=click.IntRange(1),
        help="Closed loop: keep so many requests in flight, to measure capacity.",
    ),
    click.option("--lengths", type=_PATH, help="Draw prompts' and answers' lengths from a trace."),
    click.option(
        "--prompt-tokens", metavar=_LENGTHS, help=f"{_LENGTHS_HELP}  [default: {_PROMPTS}]"
    ),
    click.option(
        "--output-tokens", metavar=_LENGTHS, help=f"The same of answers.  [default: {_OUTPUTS}]"
    ),
    click.option(
        "--longest-prompt", type=click.IntRange(1), help="Tokens; longer prompts are cut."
    ),
    click.option(
        "--longest-output", type=click.IntRange(1), help="Tokens; longer answers are cut."
    ),
    click.option(
        "--shared-prefix", metavar="TOKENS[/GROUPS]", help="Prompts begin with one of GROUPS texts."
    ),
    click.option(
        "--turns", type=click.IntRange(1), default=1, show_default=True,
        help="Requests of one conversation.",
    ),
    click.option(
        "--think", "think_s", type=duration, metavar="TIME", default="2s", show_default=True,
        help="From an answer to the next turn.",
    ),
    click.option(
        "--cancel", "cancelled", type=click.FloatRange(0, 1), default=0.0, show_default=True,
        help="Share of requests whose client leaves; 0.02 to 0.05 is usual.",
    ),
    click.option(
        "--requests", type=click.IntRange(1), default=400, show_default=True,
        help="Measured requests, of a trace the first; the upper bound of a p99 needs 368.",
    ),
    click.option(
        "--seconds", type=positive_duration, metavar="TIME",
        help="Length of the run, such as 90, 90s or 2m, instead of --requests.",
    ),
    click.option(
        "--warmup", "warmup_s", type=duration, metavar="TIME",
        help="Warm-up, left out of all figures; a tenth of the measured time if absent.",
    ),
    click.option("--seed", type=int, default=1, show_default=True, help="Seed of the traffic."),
)  # fmt: skip
_TRAFFIC_NAMES: Final = (
    "rate_rps", "cv", "uniform", "burst", "trace", "concurrency", "lengths", "prompt_tokens",
    "output_tokens", "longest_prompt", "longest_output", "shared_prefix", "turns", "think_s",
    "cancelled", "requests", "seconds", "warmup_s", "seed",
)  # fmt: skip
_TARGETS: Final = (
    click.option(
        "--ttft", metavar="TIME", help="Target of the time to the first token, such as 500ms."
    ),
    click.option(
        "--tpot", metavar="TIME", help="Target of a request's mean time per token after the first."
    ),
    click.option("--itl", metavar="TIME", help="Target of each gap between two tokens."),
    click.option("--e2e", metavar="TIME", help="Target from the arrival to the last token."),
    click.option(
        "--objective", type=click.FloatRange(0, 1, min_open=True, max_open=True),
        help="Share of requests that must meet every target, and the quantile that each is"
        " of: p95 for 0.95. The manifest's if absent, else 0.99.",
    ),
)  # fmt: skip
