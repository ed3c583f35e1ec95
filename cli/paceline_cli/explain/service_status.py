"""Explains a service that runs in a cluster, from the status of its InferenceService."""

import json
from collections.abc import Iterator
from typing import Any

from paceline_api.inference_service import GROUP, PLURAL, InferenceService
from paceline_api.status import AdapterStatus, PodTuning, ServiceThroughput, SlaStatus
from paceline_cli.kubectl import kubectl


def read_service(name: str, *, namespace: str, kubeconfig: str | None) -> dict[str, Any]:
    """The service as the API server gives it, through the kubectl that the user has set up."""
    arguments = ["get", f"{PLURAL}.{GROUP}", name, "--namespace", namespace, "-o", "json"]
    if kubeconfig:
        arguments += ["--kubeconfig", kubeconfig]
    resource: dict[str, Any] = json.loads(kubectl(*arguments))
    return resource


def explain_status(resource: dict[str, Any], pod: str | None) -> str:
    """Conditions, each pod's limits with their reason, and the last changes."""
    service = InferenceService.read(resource)
    blocks = ["\n".join([f"{service.key} · {service.spec.model.uri}", *_conditions(service)])]
    if given := service.status.throughput:
        blocks.append(_throughput(given))
    if classes := list(_prompt_classes(service.status.sla)):
        blocks.append("\n".join(["first tokens by prompt length", *classes]))
    if adapters := service.status.adapters:
        blocks.append("\n".join(["adapters", *map(_adapter, adapters)]))
    tuning = service.status.tuning
    pods = [item for item in (tuning and tuning.pods) or [] if pod in {None, item.name}]
    blocks += ["\n".join(_pod(item)) for item in pods]
    if not pods:
        blocks.append(f"no decision yet{f' about {pod}' if pod else ''}")
    history = [item for item in (tuning and tuning.history) or [] if pod in {None, item.pod}]
    if history:
        changes = [
            f"  {change.time}  {change.pod}  {change.from_} → {change.to}: {change.reason}"
            for change in history
        ]
        blocks.append("\n".join(["last changes, newest first", *changes]))
    return "\n\n".join(blocks)


def _conditions(service: InferenceService) -> Iterator[str]:
    for condition in service.status.conditions or []:
        state = f"{condition.type}={condition.status}"
        yield f"  {state:<26} {condition.reason}: {condition.message}"


def _throughput(given: ServiceThroughput) -> str:
    rates = f"{given.output_tokens_per_second or 'no'} output tokens/s"
    told = f"gives {rates}, {given.requests_per_second or 'no'} requests/s"
    if given.cost_per_million_output_tokens is None:
        return told
    return f"{told}, {given.cost_per_million_output_tokens} for 1M output tokens"


def _prompt_classes(sla: SlaStatus | None) -> Iterator[str]:
    if sla is None:
        return
    lanes = [("", sla.ttft_by_prompt_tokens)]
    if sla.batch is not None:
        lanes.append((" of the batch lane", sla.batch.ttft_by_prompt_tokens))
    for lane, classes in lanes:
        for each in classes or ():
            yield (
                f"  {each.prompt_tokens} tokens{lane}: {each.verdict}, {each.ttft or 'none'} of"
                f" {each.target}, {each.attainment or 'none'} of {each.requests or 0} requests in"
                " time"
            )


def _adapter(adapter: AdapterStatus) -> str:
    why = f"; refused: {adapter.message}" if adapter.message else ""
    return f"  {adapter.name}: on {adapter.loaded_pods} of {adapter.pods} pods{why}"


def _observed(pod: PodTuning) -> Iterator[str]:
    own = pod.at_objective
    if own is None:
        name, ttft, tpot, e2e = "p99", pod.ttft_p99, pod.tpot_p99, pod.e2e_p99
    else:
        name, ttft, tpot, e2e = f"p{100 * float(own.quantile):g}", own.ttft, own.tpot, own.e2e
    yield f"TTFT {name} {ttft or 'none'}"
    yield f"TPOT {name} {tpot or 'none'}"
    if e2e is not None:
        yield f"E2E {name} {e2e}"


def _pod(pod: PodTuning) -> Iterator[str]:
    yield f"pod/{pod.name}"
    yield f"  observed    {', '.join(_observed(pod))}"
    yield f"  inputs      {pod.running or 0} running, {pod.waiting or 0} waiting"
    yield f"  limits      batch {pod.batch_size}, tokens {pod.token_budget}"
    yield f"  binding     {pod.binding or 'unknown'}"
    yield f"  verdict     {pod.verdict or 'Unknown'} ({pod.phase or 'unknown'})"
    yield f"  reason      {pod.reason or 'none given'}"
