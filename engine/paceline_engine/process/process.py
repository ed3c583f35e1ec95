"""The life of the engine's process: socket, model, step loop, and the reason when it ends."""

import faulthandler
import json
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Protocol

from paceline_engine.checkpoint.tokenizer import TokenizerFiles
from paceline_engine.core.batch import Runner
from paceline_engine.drafting.draft_model import DraftModel, LoadedDraft
from paceline_engine.drafting.proposer import Proposer
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.errors import EngineError, StepHung
from paceline_engine.grammar.grammar import Grammars
from paceline_engine.kv_cache.swap import Swapper
from paceline_engine.loading.out_of_memory import memory_explained
from paceline_engine.lora.adapters import Adapters
from paceline_engine.pacing.pacer import Pacer
from paceline_engine.process.fetching import download
from paceline_engine.process.ipc import Link, Stop
from paceline_engine.process.loading_log import LoadingLog
from paceline_engine.process.step_watch import STDERR, StepLimits, StepWatch
from paceline_engine.process.worker import Worker, WorkerSettings
from paceline_engine.profiling.profile import begin_with_profile
from paceline_engine.runner.graph_use import GraphUse
from paceline_engine.scheduling import Gathering
from paceline_engine.settings import Settings
from paceline_wire import Failed, Loading, ModelInfo
from paceline_wire.limits import Capacity, Limits

_UNTRUSTED_FACTOR = 10.0
"""Factor on a step's predicted time while the step model is not valid: CPUs differ."""
_GPU_PROFILE_S = 3.0
"""Seconds of the profile at start on a GPU: little beside the time of reading the weights."""
_FAREWELL_S = 1.0
"""Seconds for the socket's thread to send the reason to the sidecar before the process ends."""

_log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
"""Called with a stage and its fraction, 0 to 1."""


class ServableModel(Protocol):
    """A model on its device, with the memory of its cache allocated."""

    @property
    def runner(self) -> Runner:
        """What computes its steps."""
        ...

    @property
    def info(self) -> ModelInfo:
        """What the sidecar must know of it."""
        ...

    @property
    def capacity(self) -> Capacity:
        """What was allocated."""
        ...

    @property
    def adapters(self) -> Adapters | None:
        """LoRA adapters, where the settings allow any."""
        ...

    @property
    def swapper(self) -> Swapper | None:
        """Host memory for the blocks of preempted requests, if there is any."""
        ...

    @property
    def draft(self) -> LoadedDraft | None:
        """The draft model of speculative decoding, where the settings name one."""
        ...

    @property
    def graph_use(self) -> GraphUse:
        """How often steps are replayed from CUDA graphs."""
        ...


TakeTokenizer = Callable[[TokenizerFiles], None]
"""Called once while the model is loaded, as soon as its tokenizer is read, in any thread."""
LoadModel = Callable[[Settings, Progress, TakeTokenizer], ServableModel]
MakePacer = Callable[[ModelInfo, Capacity], Pacer]


def serve(settings: Settings, load_model: LoadModel, make_pacer: MakePacer) -> int:
    """Serve until SIGTERM; the exit code."""
    # While loading there is nothing to finish.
    signal.signal(signal.SIGTERM, _leave_now)
    try:
        _serve(settings, load_model, make_pacer)
    except EngineError as error:
        explain(error, settings.termination_log)
        return 1
    return 0


def explain(error: EngineError, termination_log: Path) -> None:
    """Write why the engine cannot serve: to the log, and where Kubernetes reads it."""
    _log.error("%s: %s", error.reason, error.message)
    _write_reason(Failed(error.reason, error.message), termination_log)


def _write_reason(failed: Failed, termination_log: Path) -> None:
    line = json.dumps({"reason": failed.reason, "message": failed.message})
    try:
        termination_log.write_text(line + "\n")
    except OSError as failure:
        _log.warning("cannot write the termination log %s: %s", termination_log, failure)


def _serve(settings: Settings, load_model: LoadModel, make_pacer: MakePacer) -> None:
    instance = uuid.uuid4().hex
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    _write_state(settings.run_dir, instance, "loading")
    link = Link(settings.run_dir, time.monotonic)
    try:
        _run(settings, _load(settings, load_model, link), make_pacer, link, instance)
    except EngineError as error:
        _fail(link, settings.run_dir, instance, Failed(error.reason, error.message))
        raise
    except Exception as error:
        # A defect of ours: the traceback shows where, and the sidecar hears of it at once.
        reason = Failed("EngineCrashed", f"{type(error).__name__}: {error}")
        _write_reason(reason, settings.termination_log)
        _fail(link, settings.run_dir, instance, reason)
        raise
    finally:
        link.close()


def _load(settings: Settings, load_model: LoadModel, link: Link) -> ServableModel:
    """Load the model, and report the progress to the sidecar and in the log."""
    log = LoadingLog()
    has_tokenizer = Event()

    def report(stage: str, done: float) -> None:
        link.greet(Loading(stage, done, has_tokenizer.is_set()))
        log(stage, done)

    def write(tokenizer: TokenizerFiles) -> None:
        tokenizer.write(settings.run_dir)
        has_tokenizer.set()

    return load_model(settings, report, write)


def _run(
    settings: Settings, model: ServableModel, make_pacer: MakePacer, link: Link, instance: str
) -> None:
    """Profile the model's steps, then serve until stopped."""
    pacer = make_pacer(model.info, model.capacity)
    overlap = _overlaps(settings, model.info)
    with memory_explained(settings, "while steps were timed after loading"):
        profile = begin_with_profile(
            pacer,
            model.runner,
            model.capacity,
            overlap=overlap,
            budget_s=_profile_s(settings, model.info),
            clock=time.monotonic,
        )
        proposer = _proposer(model, make_pacer)
    model.graph_use.restart()
    engine = _engine(settings, model, pacer, proposer, overlap=overlap)
    watch = StepWatch(
        _step_limits(settings, model.info, engine),
        lambda hung_s: _leave_hung(link, settings, instance, hung_s),
    )
    worker = Worker(
        engine,
        link,
        WorkerSettings(instance, model.info, settings.drain_s, profile),
        grammars=_grammars(settings, model.info),
        watch=watch,
        fetch=lambda path: _fetch_adapter(settings, path),
    )
    signal.signal(signal.SIGTERM, lambda *_: link.inbox.put(Stop()))
    _write_state(settings.run_dir, instance, "ready")
    watch.start()
    try:
        worker.run()
    finally:
        watch.close()


def _engine(
    settings: Settings,
    model: ServableModel,
    pacer: Pacer,
    proposer: Proposer | None,
    *,
    overlap: bool,
) -> Engine:
    return Engine(
        model.runner,
        model.info,
        model.capacity,
        pacer,
        limits=_initial_limits(settings, model.capacity),
        clock=time.monotonic,
        options=EngineOptions(
            scheduling=settings.scheduling,
            gathering=Gathering(settings.dynamic_max_wait_s, settings.dynamic_buckets),
            prefix_caching=settings.prefix_caching,
            overlap=overlap,
            swapper=model.swapper,
            adapters=model.adapters,
            draft_tokens=0 if settings.speculative == "none" else settings.speculative_tokens,
            proposer=proposer,
            graph_use=model.graph_use,
        ),
    )


def _proposer(model: ServableModel, make_pacer: MakePacer) -> Proposer | None:
    """Return the draft model, measured and ready; None where sequences draft for themselves."""
    if model.draft is None:
        return None
    pacer = make_pacer(model.draft.info, model.capacity)
    proposer = DraftModel(model.draft.runner, pacer, model.capacity, time.monotonic)
    proposer.warm_up()
    return proposer


def _grammars(settings: Settings, info: ModelInfo) -> Grammars:
    return Grammars(
        settings.run_dir / "tokenizer.json",
        vocab_size=info.vocab_size,
        eos_token_ids=info.eos_token_ids,
    )


def _overlaps(settings: Settings, info: ModelInfo) -> bool:
    if settings.overlap != "auto":
        return settings.overlap == "on"
    return info.device != "cpu" and settings.can_overlap


def _profile_s(settings: Settings, info: ModelInfo) -> float:
    if settings.profile_s is not None:
        return settings.profile_s
    return 0.0 if info.device == "cpu" else _GPU_PROFILE_S


def _step_limits(settings: Settings, info: ModelInfo, engine: Engine) -> StepLimits:
    def expected_s() -> float:
        caution = 1.0 if engine.pacer.info().valid else _UNTRUSTED_FACTOR
        return caution * engine.predicted_ms / 1e3

    return StepLimits(settings.step_timeout_s, expected_s, sleeps_when_hung=info.device == "cpu")


def _leave_hung(link: Link, settings: Settings, instance: str, hung_s: float) -> None:
    """End the process from a thread beside the one that hangs, which cannot be ended."""
    error = StepHung(f"a step did not return within {hung_s:.1f} s: it hangs")
    _fail(link, settings.run_dir, instance, Failed(error.reason, error.message))
    explain(error, settings.termination_log)
    faulthandler.dump_traceback(file=STDERR)
    time.sleep(_FAREWELL_S)
    os._exit(1)


def _fetch_adapter(settings: Settings, path: str) -> Path:
    # Not imported at the top: the hub's client takes a second, and few engines have adapters.
    from paceline_engine.checkpoint.hub import Hub  # noqa: PLC0415 - as above

    return download(path, Hub(settings.cache_dir, settings.hf_token))


def _fail(link: Link, run_dir: Path, instance: str, failed: Failed) -> None:
    _write_state(run_dir, instance, "failed")
    link.greet(failed)


def _initial_limits(settings: Settings, capacity: Capacity) -> Limits:
    return Limits(
        max_batch_size=settings.initial_batch_size or capacity.max_batch_size,
        token_budget=settings.initial_token_budget or capacity.max_token_budget,
        may_pause_batch=False,
    )


def _write_state(run_dir: Path, instance: str, state: str) -> None:
    fresh = run_dir / "engine.json.new"
    fresh.write_text(json.dumps({"instance": instance, "state": state}))
    fresh.replace(run_dir / "engine.json")


def _leave_now(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)
