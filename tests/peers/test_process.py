"""A peer's process: answers when it is asked, stopped when it is not."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from peers.process import PeerProcess
from peers.rows import Row
from peers.setup import Identity, Refused
from peers.starts import Start
from serving_workload import Workload

ROW = Row("stub", "Paceline", "float32")
ENGINE = """
from peers.closed_loop import serve
from peers.setup import Identity, Refused
from serving_workload import Timeline

def answer(prompts, workload):
    {answer}

def start(setup):
    {start}
    return Identity("1", setup.precision), answer

serve(start)
"""
ANSWERS = "return [Timeline(1.0, (2.0,) * workload.output_tokens) for _ in prompts]"


@contextmanager
def a_peer(folder: Path, *, answer: str = ANSWERS, start: str = "") -> Iterator[PeerProcess]:
    script = folder / "engine.py"
    script.write_text(ENGINE.format(answer=answer, start=start))
    peer = PeerProcess(ROW, Start(str(script)), 2)
    try:
        yield peer
    finally:
        peer.close()


def state_of(peer: PeerProcess) -> str:
    stat = Path(f"/proc/{peer._process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0]


def test_it_tells_what_runs_and_answers_every_order(tmp_path: Path) -> None:
    workload = Workload(requests=3, concurrency=2, output_tokens=5)

    with a_peer(tmp_path) as peer:
        runs = [peer.run(workload.prompts(seed), workload) for seed in range(2)]

        assert peer.identity == Identity("1", "float32")
    assert [[len(line.tokens) for line in lines] for lines in runs] == [[5, 5, 5]] * 2


def test_it_is_stopped_between_its_runs(tmp_path: Path) -> None:
    """Threads of it that wake by themselves would slow the engine that runs."""
    workload = Workload(requests=1, concurrency=1, output_tokens=1)

    with a_peer(tmp_path) as peer:
        before = state_of(peer)
        peer.run(workload.prompts(0), workload)

        assert (before, state_of(peer)) == ("T", "T")
    assert peer._process.returncode == 0


def test_an_engine_that_lacks_the_precision_says_so(tmp_path: Path) -> None:
    refusal = 'raise Refused("there is no such precision")'

    with pytest.raises(Refused, match="no such precision"), a_peer(tmp_path, start=refusal):
        pass


def test_an_engine_that_ends_within_a_run_is_told_with_its_status(tmp_path: Path) -> None:
    dies = "import os; os._exit(7)"

    with pytest.raises(RuntimeError, match="7"), a_peer(tmp_path, answer=dies):
        pass
