"""The engine's own process, with a model without weights, asked over its socket."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from paceline_testing.fake_engine import FAKE_MODEL
from paceline_testing.fake_runner import continuation
from paceline_wire import (
    Abort,
    EngineTelemetry,
    Failed,
    FromEngine,
    Hello,
    LimitsState,
    Loading,
    Output,
    Outputs,
    Ready,
    Sampling,
    SetLimits,
    Submit,
    ToEngine,
    decode_from_engine,
    encode,
)

TESTS = Path(__file__).parents[1]
DEADLINE_S = 60.0
HELLO_EVERY_MS = 100


class Client:
    """What the sidecar is to the engine: a DEALER that keeps what it hears."""

    def __init__(self, run_dir: Path) -> None:
        self.heard: list[FromEngine] = []
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.setsockopt(zmq.LINGER, 0)
        self._dealer.connect(f"ipc://{run_dir / 'engine.sock'}")

    def send(self, message: ToEngine) -> None:
        self._dealer.send(encode(message))

    def hear(self, wanted: Callable[[FromEngine], bool]) -> FromEngine:
        """The first message from now on that is wanted."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if self._dealer.poll(HELLO_EVERY_MS):
                message: FromEngine = decode_from_engine(self._dealer.recv())
                self.heard.append(message)
                if wanted(message):
                    return message
        raise AssertionError(f"not heard within {DEADLINE_S} s; last: {self.heard[-3:]}")

    def greet(self, kind: type[FromEngine] = Ready) -> FromEngine:
        """Say Hello until the engine answers with a message of this kind."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            self.send(Hello())
            if self._dealer.poll(HELLO_EVERY_MS):
                message: FromEngine = decode_from_engine(self._dealer.recv())
                self.heard.append(message)
                if isinstance(message, kind):
                    return message
        raise AssertionError(f"no {kind.__name__} within {DEADLINE_S} s")

    def outputs_until_finish(self, *ids: str) -> dict[str, list[Output]]:
        got: dict[str, list[Output]] = {id: [] for id in ids}
        while not all(outputs and outputs[-1].finish for outputs in got.values()):
            message = self.hear(lambda message: isinstance(message, Outputs))
            assert isinstance(message, Outputs)
            for output in message.outputs:
                got.setdefault(output.id, []).append(output)
        return got

    def close(self) -> None:
        self._dealer.close()
        self._context.term()


class EngineProcess:
    """One child process and the clients of its socket."""

    def __init__(self, run_dir: Path, env: dict[str, str]) -> None:
        self.run_dir = run_dir
        self.termination_log = run_dir / "termination-log"
        self._clients: list[Client] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paceline_testing.fake_engine"],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", ""))),
                "PACELINE_ENGINE_RUN_DIR": str(run_dir),
                "PACELINE_ENGINE_TERMINATION_LOG": str(self.termination_log),
                **env,
            },
        )

    def client(self) -> Client:
        client = Client(self.run_dir)
        self._clients.append(client)
        return client

    def ready_client(self) -> Client:
        client = self.client()
        client.greet()
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., EngineProcess]]:
    """Start engine processes that end with the test."""
    started: list[EngineProcess] = []

    def start(**env: str) -> EngineProcess:
        started.append(EngineProcess(tmp_path, env))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture
def engine(start: Callable[..., EngineProcess]) -> EngineProcess:
    """An engine with its usual settings."""
    return start()


def a_submit(id: str, prompt: list[int], max_tokens: int = 4) -> Submit:
    return Submit(id, prompt, Sampling(max_tokens=max_tokens, temperature=0.0))


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def test_hello_is_answered_by_ready(engine: EngineProcess) -> None:
    """The sidecar learns the model and the limits that hold, and finds the tokenizer's files."""
    ready = engine.client().greet()

    assert isinstance(ready, Ready)
    assert ready.model == FAKE_MODEL
    assert ready.limits.effective.max_batch_size == 8
    assert ready.limits.capacity.num_blocks == 256
    assert json.loads((engine.run_dir / "engine.json").read_text()) == {
        "instance": ready.instance,
        "state": "ready",
    }
    assert (engine.run_dir / "tokenizer.json").exists()


def test_hello_is_answered_while_the_model_loads(start: Callable[..., EngineProcess]) -> None:
    """The sidecar can tell a slow load from a dead engine."""
    engine = start(FAKE_ENGINE_FAULT="wait")

    loading = engine.client().greet(Loading)

    assert isinstance(loading, Loading)
    assert 0.0 <= loading.fraction <= 1.0


def test_the_tokenizer_is_there_before_the_model_is(start: Callable[..., EngineProcess]) -> None:
    """The sidecar loads it while the weights are read."""
    engine = start(FAKE_ENGINE_FAULT="wait")
    client = engine.client()
    client.greet(Loading)

    client.send(Hello())
    client.hear(lambda message: isinstance(message, Loading) and message.has_tokenizer)

    assert (engine.run_dir / "tokenizer.json").exists()
    assert (engine.run_dir / "tokenizer_config.json").exists()


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_a_request_is_answered_token_by_token(
    start: Callable[..., EngineProcess], overlap: str
) -> None:
    """Each step gives one token; the last one says why it is the last."""
    client = start(PACELINE_ENGINE_OVERLAP=overlap).ready_client()
    prompt = [5, 6, 7]

    client.send(a_submit("a", prompt))
    outputs = client.outputs_until_finish("a")["a"]

    assert tokens_of(outputs) == continuation(prompt, 4, FAKE_MODEL.vocab_size)
    assert [output.finish for output in outputs] == [None, None, None, "length"]
    assert outputs[0].scheduled_at is not None


@pytest.mark.parametrize(
    ("submit", "named"),
    [
        (a_submit("bad", []), "prompt_ids"),
        (a_submit("bad", [1000]), "prompt_ids"),
        (a_submit("bad", [-1]), "prompt_ids"),
        (a_submit("bad", [1], max_tokens=0), "max_tokens"),
        (a_submit("bad", [1] * 500, max_tokens=20), "max_tokens"),
    ],
    ids=["empty", "beyond the vocabulary", "negative", "no token wanted", "too long"],
)
def test_a_bad_request_fails_alone(engine: EngineProcess, submit: Submit, named: str) -> None:
    """Nothing a client sends stops the engine: it answers why, and serves the next."""
    client = engine.ready_client()

    client.send(submit)
    client.send(a_submit("good", [1]))
    outputs = client.outputs_until_finish("bad", "good")

    assert outputs["bad"][-1].finish == "error"
    assert named in str(outputs["bad"][-1].error)
    assert tokens_of(outputs["good"]) == continuation([1], 4, FAKE_MODEL.vocab_size)


def test_bytes_that_are_no_message_are_dropped(engine: EngineProcess) -> None:
    """A peer of another version must not bring the engine down."""
    client = engine.ready_client()

    client._dealer.send(b"\xc1not a message")
    client._dealer.send(b"")
    client.send(a_submit("a", [1]))

    assert client.outputs_until_finish("a")["a"][-1].finish == "length"


def test_an_aborted_request_frees_its_blocks(engine: EngineProcess) -> None:
    """A client that left must not hold memory."""
    client = engine.ready_client()
    client.send(a_submit("long", [1, 2, 3], max_tokens=500))
    client.hear(lambda message: isinstance(message, Outputs))

    client.send(Abort(["long", "unknown"]))
    client.outputs_until_finish("long")

    idle = client.hear(
        lambda message: isinstance(message, EngineTelemetry) and message.load.kv_used_blocks == 0
    )
    assert isinstance(idle, EngineTelemetry)
    assert idle.load.running == 0


def test_limits_change_while_serving(engine: EngineProcess) -> None:
    """A change is answered with what holds; one that is out of date changes nothing."""
    client = engine.ready_client()

    client.send(SetLimits(call=1, epoch=5, max_batch_size=2, lease_s=60.0))
    changed = client.hear(lambda message: isinstance(message, LimitsState))
    client.send(SetLimits(call=2, epoch=4, max_batch_size=7))
    refused = client.hear(lambda message: isinstance(message, LimitsState))

    assert isinstance(changed, LimitsState)
    assert (changed.call, changed.epoch, changed.error) == (1, 5, None)
    assert changed.effective.max_batch_size == 2
    assert isinstance(refused, LimitsState)
    assert refused.effective.max_batch_size == 2
    assert "epoch" in str(refused.error)


def test_a_lease_that_is_not_renewed_runs_out(engine: EngineProcess) -> None:
    """The engine says by itself that its tuner is gone, also when it has nothing to do."""
    client = engine.ready_client()
    client.send(SetLimits(call=1, epoch=1, max_batch_size=3, lease_s=60.0, certified=True))
    client.send(SetLimits(call=2, epoch=2, max_batch_size=6, lease_s=0.05))

    lost = client.hear(lambda message: isinstance(message, LimitsState) and message.call == 0)

    assert isinstance(lost, LimitsState)
    assert lost.lease_lost
    assert lost.effective.max_batch_size == 3


def test_telemetry_carries_every_step_once(engine: EngineProcess) -> None:
    """The step model of the operator is fitted from these records."""
    client = engine.ready_client()

    client.send(a_submit("a", [1, 2, 3], max_tokens=20))
    client.outputs_until_finish("a")
    client.hear(
        lambda message: isinstance(message, EngineTelemetry) and message.load.output_tokens == 20
    )

    heard = [message for message in client.heard if isinstance(message, EngineTelemetry)]
    records = [record for message in heard for record in message.steps]
    assert [record.seq for record in records] == list(range(20))
    assert [(record.prefill, record.decode) for record in records[:2]] == [(3, 0), (0, 1)]
    assert heard[-1].load.running == 0


def test_an_idle_engine_keeps_telling_that_it_lives(engine: EngineProcess) -> None:
    """Telemetry is the heartbeat."""
    client = engine.ready_client()

    beats = [client.hear(lambda message: isinstance(message, EngineTelemetry)) for _ in range(3)]

    times = [message.at for message in beats if isinstance(message, EngineTelemetry)]
    assert times == sorted(set(times))


def test_another_client_takes_over(engine: EngineProcess) -> None:
    """A sidecar that restarts has forgotten its requests: they must not run on."""
    former = engine.ready_client()
    former.send(a_submit("long", [1, 2, 3], max_tokens=500))
    former.hear(lambda message: isinstance(message, Outputs))

    client = engine.ready_client()

    client.hear(lambda message: isinstance(message, EngineTelemetry) and message.load.running == 0)
    client.send(a_submit("a", [1]))
    assert tokens_of(client.outputs_until_finish("a")["a"]) == continuation(
        [1], 4, FAKE_MODEL.vocab_size
    )


def test_sigterm_finishes_what_was_accepted(engine: EngineProcess) -> None:
    """A pod that is replaced loses no request."""
    client = engine.ready_client()
    client.send(a_submit("long", [1, 2, 3], max_tokens=300))
    client.hear(lambda message: isinstance(message, Outputs))

    engine.process.send_signal(signal.SIGTERM)
    outputs = client.outputs_until_finish("long")["long"]

    assert outputs[-1].finish == "length"
    assert engine.process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("fault", ["", "wait"], ids=["serving", "loading"])
def test_sigterm_ends_an_idle_engine(start: Callable[..., EngineProcess], fault: str) -> None:
    """The kubelet need not kill it."""
    engine = start(FAKE_ENGINE_FAULT=fault)
    engine.client().greet(Loading if fault else Ready)

    engine.process.send_signal(signal.SIGTERM)

    assert engine.process.wait(DEADLINE_S) == 0


def test_a_model_that_is_not_there_is_explained(start: Callable[..., EngineProcess]) -> None:
    """The termination log is what the operator turns into a condition."""
    engine = start(FAKE_ENGINE_FAULT="load", PACELINE_ENGINE_MODEL_URI="file:///nowhere")

    assert engine.process.wait(DEADLINE_S) == 1

    assert json.loads(engine.termination_log.read_text()) == {
        "reason": "ModelNotFound",
        "message": "nothing lies at file:///nowhere",
    }
    assert json.loads((engine.run_dir / "engine.json").read_text())["state"] == "failed"


def test_a_defect_in_a_step_ends_the_engine(start: Callable[..., EngineProcess]) -> None:
    """An engine in an unknown state must not go on; its requests fail at once."""
    engine = start(FAKE_ENGINE_FAULT="step")
    client = engine.ready_client()

    client.send(a_submit("a", [1]))
    failed = client.hear(lambda message: isinstance(message, Failed))

    assert isinstance(failed, Failed)
    assert failed.reason == "EngineCrashed"
    assert "a defect in a step" in failed.message
    assert engine.process.wait(DEADLINE_S) == 1


# Of eight tokens two are told by then; where the third launch fails the second step's never are.
@pytest.mark.parametrize(
    ("fault", "overlap", "told"),
    [("memory", "off", 2), ("memory", "on", 1), ("late", "on", 2)],
)
def test_an_illegal_memory_access_ends_the_engine(
    start: Callable[..., EngineProcess], fault: str, overlap: str, told: int
) -> None:
    """After it no result of the device is true: not one token more leaves."""
    engine = start(FAKE_ENGINE_FAULT=fault, PACELINE_ENGINE_OVERLAP=overlap)
    client = engine.ready_client()
    prompt = [5, 6, 7]

    client.send(a_submit("a", prompt, max_tokens=8))
    failed = client.hear(lambda message: isinstance(message, Failed))
    assert engine.process.wait(DEADLINE_S) == 1

    assert isinstance(failed, Failed)
    assert failed.reason == "EngineCrashed"
    assert "AcceleratorError: CUDA error: an illegal memory access" in failed.message
    assert json.loads((engine.run_dir / "engine.json").read_text())["state"] == "failed"
    given = [one for heard in client.heard if isinstance(heard, Outputs) for one in heard.outputs]
    wanted = continuation(prompt, 8, FAKE_MODEL.vocab_size)
    assert tokens_of(given) == wanted[:told]
    assert not any(output.finish for output in given)
    assert json.loads(engine.termination_log.read_text())["reason"] == "EngineCrashed"


@pytest.mark.parametrize("fault", ["hang", "spin"])
def test_a_step_that_hangs_ends_the_engine(start: Callable[..., EngineProcess], fault: str) -> None:
    """Heartbeats go on beside it: nothing else would ever tell that nobody is answered."""
    engine = start(FAKE_ENGINE_FAULT=fault, PACELINE_ENGINE_STEP_TIMEOUT_S="3")
    client = engine.ready_client()

    client.send(a_submit("a", [1]))
    failed = client.hear(lambda message: isinstance(message, Failed))

    assert isinstance(failed, Failed)
    assert failed.reason == "StepHung"
    assert engine.process.wait(DEADLINE_S) == 1
    assert json.loads(engine.termination_log.read_text())["reason"] == "StepHung"
    assert json.loads((engine.run_dir / "engine.json").read_text())["state"] == "failed"


def test_a_step_that_hangs_with_pythons_lock_ends_the_engine(
    start: Callable[..., EngineProcess],
) -> None:
    """No thread of Python's runs beside it: a timer without one ends the process."""
    engine = start(FAKE_ENGINE_FAULT="lock", PACELINE_ENGINE_STEP_TIMEOUT_S="2")
    client = engine.ready_client()

    client.send(a_submit("a", [1]))

    assert engine.process.wait(DEADLINE_S) == 1


def test_a_step_whose_core_is_taken_has_not_hung(start: Callable[..., EngineProcess]) -> None:
    """It takes four times what it may, most of it waiting for others."""
    engine = start(FAKE_ENGINE_FAULT="starve", PACELINE_ENGINE_STEP_TIMEOUT_S="2")
    client = engine.ready_client()

    client.send(a_submit("a", [1]))
    outputs = client.outputs_until_finish("a")["a"]

    assert tokens_of(outputs) == continuation([1], 4, FAKE_MODEL.vocab_size)
    assert engine.process.poll() is None
