"""What all requests share: the engine, admission, the counts, the hot configuration."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from paceline_sidecar.adapter_reconciler import AdapterReconciler
from paceline_sidecar.admission.control import AdmissionControl
from paceline_sidecar.admission.key_gate import KeyGate
from paceline_sidecar.admission.outage import Outage
from paceline_sidecar.backend import Backend, EngineView
from paceline_sidecar.errors import Unavailable
from paceline_sidecar.exchange import Exchange
from paceline_sidecar.hot_config import HotConfig
from paceline_sidecar.load_report import Load, LoadMeter
from paceline_sidecar.metrics.ledger import Ledger
from paceline_sidecar.text.codec import Codec
from paceline_sidecar.tracing.trace import Tracing
from paceline_wire import EngineTelemetry, ModelInfo

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Serving:
    """One engine that can be used: its model and the tokenizer that goes with it."""

    instance: str
    model: ModelInfo
    codec: Codec
    context_tokens: int
    eos_token_ids: frozenset[int]


class Service:
    """Listens to the engine and keeps what requests need of it."""

    def __init__(
        self,
        backend: Backend,
        *,
        run_dir: Path,
        served_name: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.backend = backend
        self.admission = AdmissionControl(clock)
        self.outage = Outage(clock)
        self.key_gate = KeyGate(clock)
        self.load_meter = LoadMeter(clock)
        self.ledger = Ledger()
        self.clock = clock
        self.tracing: Tracing | None = None
        """Creates the spans of requests; None where tracing is off."""
        self.config = HotConfig()
        self.leaving = False
        """Whether SIGTERM came: it is not ready any more, but still takes requests."""
        self.refusing = False
        """Whether new requests are refused."""
        self.problem = ""
        """Why a ready engine cannot be used; empty when it can."""
        self.configure: Callable[[], Awaitable[None]] | None = None
        """Awaited for each new engine, before it counts as ready."""
        self.chores: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Background tasks that run until the process ends."""
        self.exchanges: set[Exchange] = set()
        self.idle = asyncio.Event()
        """Set while no exchange runs."""
        self.idle.set()
        self._run_dir = run_dir
        self._served_name = served_name
        self.name = served_name or ""
        """`model` in requests; empty until the first engine says what it serves."""
        self.adapters = AdapterReconciler(backend, own_name=lambda: self.name, clock=clock)
        self._serving: Serving | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._early_codec: asyncio.Task[Codec | None] | None = None
        """For the engine that loads its model, as soon as its tokenizer's files are there."""

    def engine_changed(self, before: EngineView, after: EngineView) -> None:
        """Prepare for a new engine; forget one that went away."""
        self._record_change(before, after)
        if after.model is not None:
            self.name = self._served_name or after.model.name
        if after.phase != "ready":
            self.outage.begin()
        if after.limits is not None:
            self.admission.follow(after.limits.effective)
        self._follow_tokenizer(after)
        if after.instance == before.instance:
            if after.phase == "ready" and before.phase == "stalled":
                self.outage.end(is_start=False)
            return
        if self._preparing is not None:
            self._preparing.cancel()
        self._serving = None
        self.ledger.telemetry = None
        self.admission.rate.forget()
        self.admission.pace.forget()
        if after.instance:
            self._preparing = asyncio.create_task(self._prepare(after))

    def _record_change(self, before: EngineView, after: EngineView) -> None:
        if after.phase != before.phase:
            _log.info("engine: %s %s", after.phase, after.detail)
            was_serving = before.phase in {"ready", "stalled"}
            has_failed = was_serving and after.phase == "failed"
            self.ledger.engine_faults += has_failed or after.phase == "stalled"
        if before.instance == after.instance and before.limits and after.limits:
            self.ledger.limits_changed(before.limits, after.limits)

    def _follow_tokenizer(self, view: EngineView) -> None:
        """Load the tokenizer while the engine still loads the model; it is no use to another."""
        if view.phase == "loading" and view.loading is not None and view.loading.has_tokenizer:
            self._early_codec = self._early_codec or asyncio.create_task(self._load_early())
        elif view.phase != "ready":
            self._early_codec = None

    def telemetry_arrived(self, message: EngineTelemetry) -> None:
        """Record the steps, and learn from them how fast prompts are prefilled."""
        load = self.admission.with_held(message.load)
        self.ledger.heartbeat(msgspec.structs.replace(message, load=load))
        self.admission.rate.learn(message.steps, message.load)
        self.admission.pace.learn(message.steps)
        # Tokens count as waiting until the first token comes; the engine has computed some of them.
        computed = self.admission.sent_tokens - message.load.waiting_tokens
        self.admission.sweep(self.config, self.clock(), computed_ahead=max(0, computed))

    async def _load_early(self) -> Codec | None:
        try:
            return await asyncio.to_thread(Codec.load, self._run_dir)
        except Exception:  # noqa: BLE001 - tried again, and told, when the engine is ready
            return None

    async def _prepare(self, view: EngineView) -> None:
        if view.model is None or view.limits is None:
            return
        capacity = view.limits.capacity
        context = min(view.model.max_model_len, capacity.num_blocks * capacity.block_size)
        early, self._early_codec = self._early_codec, None
        try:
            codec = await early if early is not None else None
            if codec is None:
                codec = await asyncio.to_thread(Codec.load, self._run_dir)
            if self.configure is not None:
                await self.configure()
        except Unavailable:
            return  # it went away again: the next one is prepared anew
        except Exception as error:  # noqa: BLE001 - not ready, with its reason, beats a crash loop
            self.problem = f"{type(error).__name__}: {error}"
            _log.exception("the engine is ready, the sidecar cannot use it: %s", self.problem)
            return
        self.ledger.vllm.size_to(context)
        self.ledger.engine_starts += 1
        self.problem = ""
        eos_token_ids = frozenset(view.model.eos_token_ids)
        self._serving = Serving(
            view.instance, view.model, codec.within(context), context, eos_token_ids
        )
        self.outage.end(is_start=True)

    @property
    def epoch(self) -> int:
        """Return the epoch of the limits that hold; 0 without an engine."""
        limits = self.backend.view.limits
        return 0 if limits is None else limits.epoch

    def missing(self) -> list[str]:
        """Return why no request can be taken now; empty when ready."""
        view = self.backend.view
        missing = []
        if self.leaving:
            missing.append("the sidecar is leaving")
        if view.phase != "ready":
            missing.append(view.detail or f"the engine is {view.phase}")
        elif self._serving is None:
            missing.append(self.problem or "the tokenizer is being loaded")
        return missing

    @property
    def is_starting(self) -> bool:
        """Whether it will become ready by itself: the engine or its tokenizer is still loading."""
        is_loading = self.backend.view.phase in {"absent", "loading"}
        is_tokenizer_loading = (
            self.backend.view.phase == "ready" and self._serving is None and not self.problem
        )
        return not self.leaving and (is_loading or is_tokenizer_loading)

    def serving(self) -> Serving:
        """Return the engine to use; raises `Unavailable`."""
        if self.refusing:
            raise Unavailable("draining", "This server is going away.")
        if self._serving is None or self.backend.view.phase != "ready":
            stalled = self.backend.view.phase == "stalled"
            reason = "; ".join(self.missing())
            raise Unavailable("engine_stalled" if stalled else "engine_starting", f"{reason}.")
        return self._serving

    def load(self) -> Load:
        """Return what answers say of this pod's load."""
        return self.load_meter.load(self.backend.view, self.ledger, self.admission.queue.requests)

    def load_news(self) -> Load | None:
        """Return what gateways are told between answers; None while there is nothing to tell."""
        has_news = self.load_meter.has_news(self.backend.view)
        return self.load() if has_news else None

    @property
    def codec(self) -> Codec | None:
        """Return the served model's tokenizer and template; None before there is one."""
        return None if self._serving is None else self._serving.codec

    def began(self, exchange: Exchange) -> None:
        """Note that an exchange runs."""
        self.exchanges.add(exchange)
        self.load_meter.began()
        self.idle.clear()

    def ended(self, exchange: Exchange) -> None:
        """Note that an exchange is over."""
        if exchange in self.exchanges:
            self.exchanges.remove(exchange)
            self.load_meter.ended()
        if not self.exchanges:
            self.idle.set()

    def follow(self, config: HotConfig) -> None:
        """Obey this configuration from now on."""
        self.config = config
        self.ledger.follow(config)
