"""The two deadlines of one request: its own, and that of its first token."""

import asyncio

from paceline_sidecar.errors import Refused, TimedOut
from paceline_sidecar.exchange import Exchange
from paceline_sidecar.hot_config import HotConfig
from paceline_sidecar.service import Service
from paceline_wire.limits import Lane


def timeout_s(asked_s: float | None, config: HotConfig) -> float:
    """Return how long a request may take: what its client asks for, within the service's bound."""
    most_s = config.admission.request_timeout_s
    return most_s if asked_s is None else min(asked_s, most_s)


def watch(service: Service, exchange: Exchange, *, lane: Lane, arrived_at: float) -> None:
    """End the exchange when its deadline passes, or when its first token is hopelessly late."""
    deadline_at = exchange.generations[0].submit.deadline_at
    if deadline_at is not None:
        wait_s = max(0.0, deadline_at - service.clock())
        loop = asyncio.get_running_loop()
        exchange.deadline = loop.call_later(wait_s, _end_late, exchange)
    _watch_first_token(service, exchange, lane, arrived_at)


def _end_late(exchange: Exchange) -> None:
    exchange.fail(TimedOut("The request's deadline passed before it was done."))


def _watch_first_token(service: Service, exchange: Exchange, lane: Lane, arrived_at: float) -> None:
    config = service.config
    # The batch lane is left alone unless it has targets of its own.
    is_watched = lane == "interactive" or config.batch_sla is not None
    # The longest prompt of a request has the most time, and all its prompts are given up at once.
    longest = max(each.counted_prompt_tokens for each in exchange.generations)
    answer_s = service.admission.pace.answer_s(exchange.generations[0].submit.sampling.max_tokens)
    answer_ms = None if answer_s is None else answer_s * 1e3
    target_ms = config.sla_of(lane).first_token_ms(longest, answer_ms) if is_watched else None
    if target_ms is None or not config.admission.shed_hopeless or exchange.heard:
        return
    wait_s = arrived_at + target_ms / 1e3 - service.clock()
    if wait_s > 0:
        # Asked again when it is over: the target may have been raised meanwhile.
        exchange.first_token = asyncio.get_running_loop().call_later(
            wait_s, _watch_first_token, service, exchange, lane, arrived_at
        )
    elif _others_wait(service):
        message = f"No first token within the target of {target_ms / 1e3:g} s."
        tokens = sum(each.counted_prompt_tokens for each in exchange.generations)
        come_back_s = service.admission.comeback_s(lane, tokens, config)
        service.ledger.refusals["ttft_lost"] += len(exchange.generations)
        exchange.fail(Refused("ttft_lost", message, retry_after_s=come_back_s))


def _others_wait(service: Service) -> bool:
    """Return whether others wait in the engine: else giving up late work would help no one."""
    telemetry = service.ledger.telemetry
    return telemetry is not None and telemetry.load.waiting > 0
