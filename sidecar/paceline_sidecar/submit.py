"""The way of one request into the engine: admit, tokenize, submit."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from paceline_sidecar import deadlines
from paceline_sidecar.admission.key_gate import Pass
from paceline_sidecar.admission.tickets import Caller, Ticket
from paceline_sidecar.errors import InvalidRequest, Refused, TimedOut, Unavailable
from paceline_sidecar.exchange import Exchange, outcome_of
from paceline_sidecar.generation import ChoiceShape, Generation
from paceline_sidecar.hot_config import AdmissionPolicy
from paceline_sidecar.keys import ANYONE, Principal
from paceline_sidecar.metrics.finished_request import FinishedRequest
from paceline_sidecar.service import Service, Serving
from paceline_sidecar.text.codec import Codec
from paceline_sidecar.tracing.trace import Trace, TracedJob
from paceline_wire import Grammar, Sampling, Submit
from paceline_wire.limits import Lane


@dataclass(frozen=True, slots=True)
class Job:
    """What one HTTP request wants generated, for whom and until when."""

    sampling: Sampling
    """`max_tokens` 0 asks for all that the context leaves."""
    stops: tuple[str, ...]
    estimates: list[int]
    """Prompt tokens of each choice, estimated before tokenizing."""
    encode: Callable[[Codec], Awaitable[list[list[int]]]]
    """Tokenizes every prompt."""
    lane: Lane
    arrived_at: float
    timeout_s: float | None
    principal: Principal = ANYONE
    """Whose key came with it."""
    cache_salt: str = ""
    adapter: str = ""
    """The LoRA adapter that answers; empty for the model itself."""
    num_choices: int = 1
    """Choices of each prompt."""
    items_param: str = "prompt"
    """The field of the request that says how many items it has."""
    grammar: Grammar | None = None
    """The grammar that every output must match."""
    grammar_param: str = ""
    """The field of the request that the grammar came from."""
    echo: tuple[str | list[int], ...] = ()
    """The prompts, where the answer repeats them."""
    shows_special_tokens: bool = False
    """Whether special tokens appear in the output's text."""
    shows_output: bool = True
    """False where only the prompt's logprobs or embedding are wanted of what is computed."""
    trace: Trace | None = None
    """What the request tells of itself, where it is traced."""


async def open_exchange(service: Service, job: Job) -> Exchange:
    """Admit, tokenize, submit; where it raises, the refusal is on record already."""
    if job.trace is not None:
        job.trace.job = _traced(service, job)
    try:
        serving = service.serving()
        _check_caps(job, service.config.admission)
        admitted = _admit(service, job)
    except (Refused, Unavailable) as refusal:
        _record_refusal(service, job, refusal)
        raise
    try:
        prompts = await _encoded(service, job, serving.codec)
        counted = [len(prompt_ids) for prompt_ids in prompts for _ in range(job.num_choices)]
        service.admission.retime(admitted.tickets, counted, service.config)
        generations = [
            _generation(
                service,
                job,
                serving,
                prompt_ids,
                _shape(job, serving, place, index),
                turn_at=admitted.tickets[place * job.num_choices + index].turn_at,
            )
            for place, prompt_ids in enumerate(prompts)
            for index in range(job.num_choices)
        ]
    except BaseException as error:
        admitted.leave(now=service.clock())
        if not isinstance(error, InvalidRequest):  # a bad request was never offered
            _record_refusal(service, job, error)
        raise
    return _start(service, job, generations, admitted)


@dataclass(frozen=True, slots=True)
class _Admitted:
    """What a request holds while it runs."""

    tickets: list[Ticket]
    key_pass: Pass

    def leave(self, *, now: float, generations: Sequence[Generation] = ()) -> None:
        """Give it back. May be called again."""
        for ticket in self.tickets:
            ticket.leave()
        self.key_pass.leave(
            prompt_tokens=sum(each.counted_prompt_tokens for each in generations),
            output_tokens=sum(each.output_tokens for each in generations),
            now=now,
        )


def _admit(service: Service, job: Job) -> _Admitted:
    """Pass the key's limits and the queue's; raises `Refused`."""
    key_pass = service.key_gate.enter(
        job.principal,
        service.config.admission,
        prompt_tokens=sum(job.estimates),
        max_output=job.sampling.max_tokens * len(job.estimates),
    )
    expected = key_pass.expected_output / len(job.estimates)
    try:
        tickets = service.admission.admit(
            job.estimates,
            lane=job.lane,
            config=service.config,
            arrived_at=job.arrived_at,
            timeout_s=deadlines.timeout_s(job.timeout_s, service.config),
            caller=Caller(job.principal.id, key_pass.weight, expected),
            max_output=job.sampling.max_tokens or service.config.admission.max_output_tokens or 0,
        )
    except Refused:
        key_pass.leave(prompt_tokens=0, output_tokens=0, now=service.clock())
        raise
    return _Admitted(tickets, key_pass)


async def _encoded(service: Service, job: Job, codec: Codec) -> list[list[int]]:
    """Tokenize within the request's deadline: it counts from the arrival."""
    due_at = job.arrived_at + deadlines.timeout_s(job.timeout_s, service.config)
    try:
        async with asyncio.timeout(max(0.0, due_at - service.clock())):
            return await job.encode(codec)
    except TimeoutError as error:
        raise TimedOut("The request's deadline passed before it was tokenized.") from error


def _shape(job: Job, serving: Serving, place: int, index: int) -> ChoiceShape:
    echo = None
    if job.echo:
        prompt = job.echo[place]
        echo = prompt if isinstance(prompt, str) else serving.codec.decode(prompt)
    return ChoiceShape(
        echo, job.shows_output, index, job.num_choices, job.grammar_param, job.shows_special_tokens
    )


def _generation(
    service: Service,
    job: Job,
    serving: Serving,
    prompt_ids: list[int],
    shape: ChoiceShape,
    *,
    turn_at: float | None,
) -> Generation:
    room = serving.context_tokens - len(prompt_ids)
    policy = service.config.admission
    _check_prompt(prompt_ids, room=room, serving=serving, most=policy.max_prompt_tokens)
    _check_ids(job.sampling, serving)
    max_tokens = min(job.sampling.max_tokens or policy.max_output_tokens or room, room)
    sampling = msgspec.structs.replace(
        job.sampling,
        max_tokens=max_tokens,
        min_tokens=min(job.sampling.min_tokens, max_tokens),
        seed=_seed(job.sampling.seed, shape.index),
    )
    submit = Submit(
        id=uuid.uuid4().hex,
        prompt_ids=prompt_ids,
        sampling=sampling,
        lane=job.lane,
        arrived_at=job.arrived_at,
        deadline_at=job.arrived_at + deadlines.timeout_s(job.timeout_s, service.config),
        turn_at=turn_at,
        cache_salt=job.cache_salt,
        caller=job.principal.id,
        adapter=job.adapter,
        grammar=job.grammar,
    )
    return Generation(
        submit,
        codec=serving.codec,
        stops=job.stops,
        eos_token_ids=serving.eos_token_ids,
        ledger=service.ledger,
        shape=shape,
        principal=job.principal,
    )


def _seed(seed: int | None, index: int) -> int | None:
    """Give each choice its own seed, the same for the same request; 64 bits, signed."""
    return None if seed is None else (seed + index + 2**63) % 2**64 - 2**63


def _start(
    service: Service, job: Job, generations: list[Generation], admitted: _Admitted
) -> Exchange:
    tickets = admitted.tickets
    for ticket, generation in zip(tickets, generations, strict=True):
        ticket.count(max(generation.counted_prompt_tokens, 1))
    exchange = Exchange(
        generations,
        tickets,
        backend=service.backend,
        ledger=service.ledger,
        clock=service.clock,
        on_close=partial(_ended, service, admitted),
        trace=job.trace,
    )
    try:
        exchange.start()
    except BaseException as error:
        exchange.close(error)
        raise
    service.began(exchange)
    tickets[0].party.give_way = partial(_give_way, service, exchange)
    deadlines.watch(service, exchange, lane=job.lane, arrived_at=job.arrived_at)
    return exchange


def _ended(service: Service, admitted: _Admitted, exchange: Exchange) -> None:
    admitted.leave(now=service.clock(), generations=exchange.generations)
    service.ended(exchange)


def _give_way(service: Service, exchange: Exchange, refusal: Refused) -> bool:
    """Refuse a waiting request, unless one of its tokens has come."""
    if exchange.heard:
        return False
    service.ledger.refusals[refusal.reason] += len(exchange.generations)
    exchange.fail(refusal)
    return True


def _traced(service: Service, job: Job) -> TracedJob:
    return TracedJob(
        model=job.adapter or service.name,
        lane=job.lane,
        num_choices=len(job.estimates),
        max_tokens=job.sampling.max_tokens,
        temperature=job.sampling.temperature,
        epoch=service.epoch,
    )


def _check_caps(job: Job, policy: AdmissionPolicy) -> None:
    """Raise `InvalidRequest` for more items or output tokens than one request may have."""
    most = policy.max_items_per_request
    if len(job.estimates) > most:
        message = f"{job.items_param}: at most {most} items per request, got {len(job.estimates)}"
        raise InvalidRequest(message, param=job.items_param, code="too_many_items")
    wanted, allowed = job.sampling.max_tokens, policy.max_output_tokens
    if allowed is not None and wanted > allowed:
        message = f"max_tokens: must be at most {allowed}, got {wanted}"
        raise InvalidRequest(message, param="max_tokens", code="too_many_tokens")


def _check_prompt(prompt_ids: list[int], *, room: int, serving: Serving, most: int | None) -> None:
    """Raise `InvalidRequest` for a prompt that the model cannot take, or that is not wanted."""
    if most is not None and len(prompt_ids) > most:
        message = f"The prompt has {len(prompt_ids)} tokens, at most {most} are allowed."
        raise InvalidRequest(message, param="prompt", code="too_many_tokens")
    if not prompt_ids:
        raise InvalidRequest("The prompt has no tokens.", param="prompt")
    if room < 1:
        message = (
            f"The model's context is {serving.context_tokens} tokens; the prompt has "
            f"{len(prompt_ids)} and leaves no room for an answer."
        )
        raise InvalidRequest(message, param="prompt", code="context_length_exceeded")
    if max(prompt_ids) >= serving.model.vocab_size:
        message = (
            f"prompt: token id {max(prompt_ids)} is outside the vocabulary "
            f"of {serving.model.vocab_size} tokens"
        )
        raise InvalidRequest(message, param="prompt")


def _check_ids(sampling: Sampling, serving: Serving) -> None:
    """Raise `InvalidRequest` for a token that the model does not have."""
    vocab_size = serving.model.vocab_size
    fields = {"logit_bias": tuple(sampling.logit_bias), "stop_token_ids": sampling.stop_token_ids}
    for name, token_ids in fields.items():
        wrong = next((each for each in token_ids if not 0 <= each < vocab_size), None)
        if wrong is not None:
            message = f"{name}: token id {wrong} is outside the vocabulary of {vocab_size} tokens"
            raise InvalidRequest(message, param=name)


def _record_refusal(service: Service, job: Job, error: BaseException) -> None:
    if isinstance(error, Refused | Unavailable):
        service.ledger.refusals[error.reason] += len(job.estimates)
    now, epoch = service.clock(), service.epoch
    for place in range(len(job.estimates)):
        # Of a prompt's choices the first alone was estimated, and all are of its class.
        tokens = job.estimates[place - place % job.num_choices]
        record = FinishedRequest(
            lane=job.lane,
            arrived_at=job.arrived_at,
            finished_at=now,
            outcome=outcome_of(error),
            prompt_tokens=tokens,
            epoch=epoch,
            principal=job.principal,
        )
        service.ledger.ended(record)
