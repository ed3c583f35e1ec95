"""An engine without a model: every step gives each request a token, at a pace or as fast as read.

`python -m edge_load.instant_engine RUN_DIR BOARD`
"""

import json
import sys
import time
from pathlib import Path

import zmq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import paceline_wire as wire
from edge_load.board import STEPS, Board
from paceline_testing.byte_tokenizer import CHAT_TEMPLATE
from paceline_testing.scripted_engine import a_step_model, an_engine_load
from paceline_wire import limits

CAPACITY = limits.Capacity(
    max_batch_size=8192,
    max_token_budget=65536,
    num_blocks=10**6,
    block_size=16,
    max_model_len=10**6,
)
_HEARTBEAT_S = 0.5
_STEPS_AHEAD = 3
"""Where it goes as fast as the clients read, it is so many steps before them."""


def write_tokenizer(run_dir: Path) -> int:
    """A word for the number of each step, beside the bytes; returns the first word's id."""
    vocab = {
        piece: place for place, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    first = len(vocab)
    vocab |= {f"Ġ{word:04d}": first + word for word in range(STEPS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(run_dir / "tokenizer.json"))
    config = {"chat_template": CHAT_TEMPLATE}
    (run_dir / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return first


class InstantEngine:
    """Serves one sidecar."""

    def __init__(self, run_dir: Path, board: Board) -> None:
        self._board = board
        self._first_word = write_tokenizer(run_dir)
        self._running: dict[str, int] = {}
        """Tokens that each request still gets."""
        self._peer = b""
        self._step = 0
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.bind(f"ipc://{run_dir}/engine.sock")

    def serve(self) -> None:
        """Step until killed."""
        step_at = beat_at = 0.0
        while True:
            now = time.monotonic()
            wait_s = max(0.0, step_at - now) if self._board.interval_s else 0.0005
            while self._socket.poll(int(min(wait_s, 0.05) * 1e3) if self._running else 50):
                peer, frame = self._socket.recv_multipart()
                self._take(peer, wire.decode_to_engine(frame))
                wait_s = 0.0
            now = time.monotonic()
            if now >= beat_at and self._peer:
                beat_at = now + _HEARTBEAT_S
                load = an_engine_load(running=len(self._running))
                self._send(wire.EngineTelemetry(now, load, a_step_model(), []))
            if self._running and self._is_due(now, step_at):
                step_at = max(step_at + self._board.interval_s, now - self._board.interval_s)
                self._give_all_a_token()

    def _is_due(self, now: float, step_at: float) -> bool:
        if self._board.interval_s:
            return now >= step_at
        ahead = self._board.sent - self._board.received
        return ahead < _STEPS_AHEAD * len(self._running)

    def _give_all_a_token(self) -> None:
        self._step += 1
        token = [self._first_word + self._step % STEPS]
        outputs = []
        for id_, left in list(self._running.items()):
            finish: wire.FinishReason | None = "length" if left == 1 else None
            outputs.append(wire.Output(id_, token, finish=finish))
            if left == 1:
                del self._running[id_]
            else:
                self._running[id_] = left - 1
        self._board.sent += len(outputs)
        now = time.monotonic()
        self._board.stamp(self._step, now)
        self._send(wire.Outputs(at=now, outputs=outputs))

    def _take(self, peer: bytes, message: wire.ToEngine) -> None:
        match message:
            case wire.Hello():
                self._peer = peer
                self._send(wire.Ready("instant", _model(self._first_word), _limits()))
            case wire.Submit():
                self._running[message.id] = message.sampling.max_tokens
            case wire.Abort(ids=ids):
                for id_ in ids:
                    self._running.pop(id_, None)
            case _:
                pass

    def _send(self, message: wire.FromEngine) -> None:
        self._socket.send_multipart([self._peer, wire.encode(message)])


def _model(first_word: int) -> wire.ModelInfo:
    return wire.ModelInfo(
        name="instant",
        family="llama",
        revision="",
        dtype="float32",
        device="cpu",
        num_parameters=0,
        vocab_size=first_word + STEPS,
        max_model_len=CAPACITY.max_model_len,
        bos_token_id=None,
        eos_token_ids=[],
        kv_bytes_per_token=0,
        weight_bytes=0,
    )


def _limits() -> wire.LimitsState:
    all_of_it = limits.Limits(CAPACITY.max_batch_size, CAPACITY.max_token_budget)
    return wire.LimitsState(
        call=0,
        requested=all_of_it,
        effective=all_of_it,
        certified=all_of_it,
        capacity=CAPACITY,
        epoch=1,
        since_step=0,
        lease_expires_at=None,
        lease_lost=False,
        clamped=[],
    )


if __name__ == "__main__":
    InstantEngine(Path(sys.argv[1]), Board(Path(sys.argv[2]))).serve()
