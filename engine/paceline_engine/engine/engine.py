"""The engine: requests and limits in, outputs out, a step at a time. One thread owns it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from paceline_engine.core.batch import Runner
from paceline_engine.core.constraint import Constraint
from paceline_engine.core.request import Request
from paceline_engine.drafting.guided import FORCED_TOKENS
from paceline_engine.drafting.ngram import NgramProposer
from paceline_engine.drafting.proposer import Proposer
from paceline_engine.drafting.speculation import Speculation
from paceline_engine.engine.control import LimitsControl
from paceline_engine.engine.intake import refusal
from paceline_engine.engine.stats import load_of
from paceline_engine.engine.stepping import Steps
from paceline_engine.errors import AdapterRefused
from paceline_engine.hardware.placing import leave_core
from paceline_engine.kv_cache.swap import Swapper
from paceline_engine.lora.adapters import Adapters, LoadedAdapter
from paceline_engine.pacing.pacer import Pacer
from paceline_engine.runner.graph_use import GraphUse
from paceline_engine.scheduling import Gathering, Scheduling, make_scheduler
from paceline_wire import (
    AdaptersState,
    EngineLoad,
    LimitsState,
    LoadAdapter,
    ModelInfo,
    Output,
    SetLimits,
    Submit,
    UnloadAdapter,
)
from paceline_wire.limits import Capacity, Limits


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine schedules and runs its steps, and the optional parts it does so with."""

    scheduling: Scheduling = "continuous"
    gathering: Gathering | None = None
    """How dynamic batches are gathered; None leaves it at the default."""
    prefix_caching: bool = True
    overlap: bool = False
    """Schedule and launch a step while the one before runs."""
    swapper: Swapper | None = None
    """Host memory for the blocks of preempted requests."""
    adapters: Adapters | None = None
    draft_tokens: int = 0
    """The most draft tokens per step and sequence, where they pay; 0 for none."""
    proposer: Proposer | None = None
    """What drafts them; n-grams of the sequence itself where there is none."""
    forced_tokens: int = FORCED_TOKENS
    """The most tokens of a structured output that one step takes ahead; 0 for none."""
    graph_use: GraphUse = field(default_factory=GraphUse)
    """The runner's counts of steps that it replays from CUDA graphs."""


class Engine:
    """Takes requests and limits in, gives outputs out, one step at a time."""

    def __init__(
        self,
        runner: Runner,
        info: ModelInfo,
        capacity: Capacity,
        pacer: Pacer,
        *,
        limits: Limits,
        clock: Callable[[], float],
        options: EngineOptions | None = None,
    ) -> None:
        options = options or EngineOptions()
        speculation = None
        if options.draft_tokens or options.forced_tokens:
            proposer = options.proposer or NgramProposer() if options.draft_tokens else None
            speculation = Speculation(
                options.draft_tokens,
                capacity.max_model_len,
                proposer,
                forced_tokens=options.forced_tokens,
                max_rows=capacity.max_batch_size,
                begin_thread=leave_core,
            )
        self.control = LimitsControl(limits, capacity)
        self.scheduler = make_scheduler(
            options.scheduling,
            capacity,
            pacer,
            eos_token_ids=info.eos_token_ids,
            prefix_caching=options.prefix_caching,
            swapper=options.swapper,
            speculation=speculation,
            gathering=options.gathering,
        )
        self.requests = self.scheduler.requests
        self.pacer = pacer
        self._steps = Steps(
            self.scheduler,
            pacer,
            runner,
            overlap=options.overlap,
            swapper=options.swapper,
            clock=clock,
        )
        self.log = self._steps.log
        self.counters = self._steps.counters
        self._adapters = options.adapters
        self._graph_use = options.graph_use
        self._info = info
        self._capacity = capacity
        self._clock = clock
        self._num_arrived = 0
        self._unsent: list[Output] = []

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, nothing waits, and every output was given."""
        return not len(self.requests) and not self._unsent and not self._steps.is_in_flight

    @property
    def is_gathering(self) -> bool:
        """Whether nothing runs because the requests that wait are too few for a batch."""
        return self._steps.is_gathering

    @property
    def predicted_ms(self) -> float:
        """How long the step under way, or the last one, should take; 0 before any."""
        return self._steps.predicted_ms

    def submit(self, submit: Submit, constraint: Constraint | None = None) -> None:
        """Queue a request, whose output may have to fit a compiled grammar.

        A refused one is answered by the next step's outputs.
        """
        reason = refusal(submit, capacity=self._capacity, vocab_size=self._info.vocab_size)
        if reason is None and self.requests.get(submit.id) is not None:
            reason = f"id must be new, got {submit.id!r}, which is in the engine"
        adapter = self._adapters.find(submit.adapter) if self._adapters else None
        if reason is None and submit.adapter and adapter is None:
            reason = f"adapter must be one that is loaded, got {submit.adapter!r}"
        if reason is not None:
            self.refuse(submit.id, reason)
            return
        self._num_arrived += 1
        self.requests.add(_request(submit, self._num_arrived, constraint, adapter))

    def refuse(self, request_id: str, reason: str) -> None:
        """Answer a request that can never run."""
        self._unsent.append(Output(request_id, [], "error", error=reason, is_invalid=True))

    def change_adapters(
        self, change: LoadAdapter | UnloadAdapter, folder: Path | None = None
    ) -> AdaptersState:
        """Load or unload a LoRA adapter between two steps; return what may be named after it.

        `folder` is where the adapter was downloaded to; its path where it was not.
        """
        if self._adapters is None:
            error = "The engine takes no adapters: PACELINE_ENGINE_MAX_LORAS is 0."
            return self.adapters_state(change.call, error)
        try:
            if isinstance(change, LoadAdapter):
                slots = (request.adapter_slot for request in self.requests)
                in_use = {slot for slot in slots if slot is not None}
                folder = folder or Path(change.path)
                self._adapters.load(
                    change.name,
                    change.path,
                    folder=folder,
                    in_use=in_use,
                    replaces=change.replaces,
                )
            else:
                self._adapters.unload(change.name)
        except AdapterRefused as refused:
            return self.adapters_state(change.call, str(refused))
        return self.adapters_state(change.call)

    def adapters_state(self, call: int = 0, error: str | None = None) -> AdaptersState:
        """Return the LoRA adapters that requests may name, as the answer to a call."""
        if self._adapters is None:
            return AdaptersState(call, [], error)
        return AdaptersState(call, self._adapters.names, error, self._adapters.paths)

    def abort(self, ids: Iterable[str]) -> None:
        """Forget requests and free their blocks now. Unknown ids are ignored."""
        for id_ in ids:
            request = self.requests.get(id_)
            if request is not None:
                self.scheduler.finish(request, "abort")
                self._unsent.append(Output(id_, [], finish="abort"))

    def abort_all(self) -> None:
        """Forget every request: whoever submitted them is gone."""
        self.abort([request.id for request in self.requests])
        self._unsent.clear()

    def set_limits(self, wanted: SetLimits) -> LimitsState:
        """Change the limits; the next step is the first to see them."""
        is_new = wanted.epoch > self.control.epoch
        state = self.control.change(
            wanted,
            now=self._clock(),
            next_step=self._steps.next_seq,
            decodes=len(self.requests.decoding),
        )
        seed = wanted.coefficients
        if seed is None or state.error is not None or not is_new or self.pacer.seed(seed):
            return state
        return msgspec.structs.replace(state, ignored=["coefficients"])

    def expire_lease(self) -> LimitsState | None:
        """Give up limits whose lease has run out; return the new state, if it has."""
        if self.control.lease_expires_at is None:
            return None
        return self.control.expire(
            now=self._clock(),
            next_step=self._steps.next_seq,
            decodes=len(self.requests.decoding),
        )

    def limits_state(self) -> LimitsState:
        """Tell which limits hold."""
        return self.control.state(call=0, decodes=len(self.requests.decoding))

    def step(self) -> list[Output]:
        """Run one step, if there is anything to run; return what the step that ended gave."""
        started = self._clock()
        self._refuse_late(started)
        unsent, self._unsent = self._unsent, []
        return unsent + self._steps.step(self.control.limits, started, epoch=self.control.epoch)

    def settle(self) -> None:
        """Wait for the step in flight, if there is one; the next step gives its outputs."""
        self._unsent += self._steps.settle()

    def load(self, *, gc_pause_ms: float = 0.0) -> EngineLoad:
        """Describe the engine now."""
        return load_of(
            self.requests,
            self.counters,
            graph_use=self._graph_use,
            stuck_admissions=self._steps.watchdog.num_spells,
            now=self._clock(),
            gc_pause_ms=gc_pause_ms,
        )

    def _refuse_late(self, now: float) -> None:
        for request in self.requests.pop_late(now):
            self.scheduler.finish(request, "error")
            self._unsent.append(Output(request.id, [], finish="error", error="deadline"))


def _request(
    submit: Submit, number: int, constraint: Constraint | None, adapter: LoadedAdapter | None
) -> Request:
    # The same tokens have other keys and values under another adapter.
    salt = submit.cache_salt if adapter is None else f"{adapter.salt}\0{submit.cache_salt}"
    return Request(
        id=submit.id,
        token_ids=list(submit.prompt_ids),
        num_prompt_tokens=len(submit.prompt_ids),
        sampling=submit.sampling,
        lane=submit.lane,
        arrived_at=submit.arrived_at,
        deadline_at=submit.deadline_at,
        turn_at=submit.turn_at,
        cache_salt=salt,
        adapter_slot=None if adapter is None else adapter.slot,
        number=number,
        constraint=constraint,
    )
