"""What a pod and a service give a second, and what a million of their tokens costs. Pure."""

from collections.abc import Iterable

from paceline_tuner.records import column
from paceline_tuner.service_report import Throughput, TokenCost
from paceline_tuner.window import Evidence

_SECONDS_PER_HOUR = 3600.0
_MILLION = 1e6


def throughput(evidence: Evidence) -> Throughput | None:
    """Measure one pod over the window; None until its counters were read twice."""
    if evidence.counted is None:
        return None
    then, now = evidence.counted
    seconds = now.at - then.at
    return _rounded(
        (now.output_tokens - then.output_tokens) / seconds,
        (now.prompt_tokens - then.prompt_tokens) / seconds,
        finished_rps(evidence),
    )


def throughput_of_records(evidence: Evidence) -> Throughput:
    """Estimate one pod by the records of a single answer, which holds the counters but once.

    Each decode of a step made a token, and as many more as drafts were accepted since the start;
    each request that was served had a first token before its decodes.
    """
    load, served = evidence.load, finished_rps(evidence)
    by_steps = float((column(evidence.steps, "decode") * column(evidence.steps, "weight")).sum())
    plain = load.output_tokens - load.accepted_tokens
    drafted = load.output_tokens / plain if load.accepted_tokens and plain > 0 else 1.0
    weights = column(evidence.requests, "is_ok") * column(evidence.requests, "weight")
    prompts = float((column(evidence.requests, "prompt_tokens") * weights).sum())
    return _rounded(
        drafted * by_steps / evidence.window_s + served, prompts / evidence.window_s, served
    )


def finished_rps(evidence: Evidence) -> float:
    """Count the requests that were served to their end, a second."""
    served = column(evidence.requests, "is_ok") * column(evidence.requests, "weight")
    return float(served.sum()) / evidence.window_s


def together(pods: Iterable[Throughput | None]) -> Throughput | None:
    """Add up the pods that were measured; None where none was."""
    known = [pod for pod in pods if pod is not None]
    if not known:
        return None
    return _rounded(
        sum(pod.output_tps for pod in known),
        sum(pod.prompt_tps for pod in known),
        sum(pod.finished_rps for pod in known),
    )


def token_cost(
    given: Throughput | None, *, price_per_hour: float | None, num_pods: int = 1
) -> TokenCost | None:
    """Divide what the pods cost a second by the tokens of a second, in millions.

    None without a price, and while no token is generated: then there is nothing to divide by.
    """
    if given is None or price_per_hour is None or given.output_tps <= 0:
        return None
    a_second = price_per_hour * num_pods / _SECONDS_PER_HOUR
    return TokenCost(
        per_million_output=a_second * _MILLION / given.output_tps,
        per_million_total=a_second * _MILLION / given.total_tps,
    )


def _rounded(output_tps: float, prompt_tps: float, finished_rps: float) -> Throughput:
    """Keep three digits: further ones jitter, and would make every report a new one."""
    output, prompt, finished = (
        float(f"{value:.3g}") for value in (output_tps, prompt_tps, finished_rps)
    )
    return Throughput(output, prompt, finished)
