"""`paceline bench run`: one's own traffic on one server, measured at the client."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console

from paceline_api.tuning_spec import tuning_spec
from paceline_cli.bench.document import RUN_SCHEMA, RunResult
from paceline_cli.bench.endpoint import api_key, base_url, first_model, opened, token_counter
from paceline_cli.bench.run_report import progress, show, write_report
from paceline_cli.bench.traffic_choice import ChosenTraffic, TrafficChoice, chosen_traffic
from paceline_cli.bench.trial import Trial, offer, warmed_up
from paceline_cli.errors import BadInputError
from paceline_cli.manifest import read
from paceline_cli.place import state_dir
from paceline_cli.traffic.calibration import UTILIZATION, machine, measure_speed
from paceline_cli.traffic.corpus import help_topics
from paceline_cli.traffic.offered_load import PlannedRequest
from paceline_cli.traffic.open_loop import Asking, Endpoint
from paceline_cli.up.serving import local_tuner, serving
from paceline_tuner.service_spec import SLA

_ROOM: Final = 32
"""Tokens of a context that a chat template and an inexact excerpt may take."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What to measure and where to write."""

    traffic: TrafficChoice
    out: Path
    sla: Callable[[SLA], SLA]
    """From the manifest's targets to those that were asked for."""
    manifest: Path | None = None
    """Served on this machine, unless `url` is given; then it only declares the targets."""
    url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    tokenizer: str | None = None
    endpoint: Endpoint = "completions"
    ignore_eos: bool = True
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class _Server:
    """The server that is measured."""

    client: httpx.AsyncClient
    service: str
    model: str
    """As requests name it."""


async def run_bench(options: RunOptions, console: Console) -> RunResult:
    """Serve or connect, offer the traffic, measure, report."""
    declared = read(options.manifest).spec if options.manifest is not None else None
    sla = options.sla(tuning_spec(declared).sla if declared is not None else SLA())
    traffic = options.traffic
    if declared is not None:
        traffic = fitting(traffic, declared.engine.max_model_len)
    async with _server(options, console) as server:
        chosen = await _chosen(traffic, server, console, asks_ours=options.url is None)
        requests = _planned(chosen, traffic)
        asking = Asking(
            server.model,
            options.endpoint,
            options.ignore_eos,
            options.timeout_s,
            token_counter(options.tokenizer),
        )
        _say(console, f"{len(requests)} requests to {server.service}: {chosen.words}")
        with progress(console, total(requests)) as on_record:
            trial = await offer(
                server.client, requests, asking, chosen.stretch, sla, on_record=on_record
            )
    result = RunResult(
        schema=RUN_SCHEMA,
        service=server.service,
        model=server.model,
        client_machine=machine(),
        traffic=chosen.words,
        seed=traffic.seed,
        warmup=warmed_up(chosen.stretch, trial.num_warmup),
        sla=sla,
        measures=trial.measures,
        client=trial.client,
        notes=_notes(trial),
    )
    show(result, console)
    page = write_report(result, trial, options.out)
    _say(console, f"report: {page}")
    return result


@contextlib.asynccontextmanager
async def _server(options: RunOptions, console: Console) -> AsyncIterator[_Server]:
    if options.url is not None:
        async with opened(options.url, api_key(options.api_key_env)) as client:
            model = options.model or await first_model(client)
            yield _Server(client, base_url(options.url), model)
        return
    if options.manifest is None:
        raise BadInputError("say what to measure: --url or -f")
    async with (
        local_tuner() as tuner,
        serving(options.manifest, port=None, tuner=tuner, folder=state_dir()) as live,
    ):
        live.on_event.append(lambda text: _say(console, text))
        _say(console, f"loading {live.service.spec.model.uri}")
        await live.ready.wait()
        async with opened(live.place.url) as client:
            yield _Server(client, live.name, options.model or live.service.served_name)


async def _chosen(
    traffic: TrafficChoice, server: _Server, console: Console, *, asks_ours: bool
) -> ChosenTraffic:
    """Settle the rate; of our own service it is measured where none was given."""
    if not (traffic.needs_rate and asks_ours):
        return chosen_traffic(traffic)
    _say(console, "calibrating: how fast does this machine serve?")
    speed = await measure_speed(
        server.client, model=server.model, corpus=help_topics(), seed=traffic.seed
    )
    return chosen_traffic(traffic, float(f"{UTILIZATION * speed.capacity_rps:.3g}"))


def _planned(chosen: ChosenTraffic, traffic: TrafficChoice) -> tuple[PlannedRequest, ...]:
    requests = chosen.requests(help_topics(), traffic.seed)
    if not any(request.at_s >= chosen.stretch.warmup_s for request in requests):
        raise BadInputError(
            f"no request is due in {chosen.stretch.seconds:g} s of that traffic: ask for more"
        )
    return requests


def fitting(traffic: TrafficChoice, max_model_len: int | None) -> TrafficChoice:
    """Cut lengths to the context that the manifest declares."""
    if max_model_len is None:
        return traffic
    half = max(1, max_model_len // 2 - _ROOM)
    return replace(
        traffic,
        longest_prompt=traffic.longest_prompt or half,
        longest_output=traffic.longest_output or half,
    )


def total(requests: Sequence[PlannedRequest]) -> int:
    """Count requests, each turn of a conversation for itself."""
    return sum(1 + len(request.turns) for request in requests)


def _notes(trial: Trial) -> tuple[str, ...]:
    """What a reader must know before the figures."""
    notes = []
    if trial.client.is_saturated:
        notes.append(trial.client.sentence)
    errors = [record.error for record in trial.records if record.outcome == "failed"]
    if errors:
        notes.append(f"{len(errors)} requests failed, the first with: {errors[0]}")
    answered = [record for record in trial.records if record.outcome == "ok"]
    if answered and not any(record.prompt_tokens for record in answered):
        notes.append(
            "The server told no usage and no --tokenizer was given:"
            " output tokens are pieces of text, prompt tokens are not known."
        )
    return tuple(notes)


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False, highlight=False)
