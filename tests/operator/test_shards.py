"""Processes beside the operator's tune what it names, and only while it leads."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from paceline_operator.sharding.channel import to_operator, to_shard
from paceline_operator.sharding.messages import (
    Follow,
    Forget,
    Grant,
    Unchanged,
    WarmStartFound,
    WarmStartWanted,
)
from paceline_operator.sharding.shard import Program
from paceline_operator.sharding.warm_starts import SharedWarmStart
from paceline_testing.awaiting import until
from paceline_testing.sharded_fleet import MemoryStore, a_sharded_fleet, uid_of
from paceline_testing.waiting import wait_until
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.service_target import ServiceTarget
from paceline_tuner.warm_start import WarmStart
from paceline_tuner.warm_start_entry import EngineKey, WarmStartEntry
from paceline_tuner.warm_start_json import decode, encode

pytestmark = pytest.mark.slow

_TARGET = ServiceTarget("ns/one", TuningSpec(sla=SLA(itl_p99_ms=300.0)), ())


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has asked after its end does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_each_service_is_tuned_by_the_process_of_its_shard() -> None:
    """Targets cross, limits reach the pods, reports come back, and metrics tell of each process."""
    async with a_sharded_fleet() as fleet:
        fleet.follow_all()
        fleet.lead()

        await until(lambda: fleet.all_have("one"))
        await until(lambda: fleet.heard.reports.keys() == fleet.sidecars.keys())
        await until(lambda: all(r.acknowledged for r in fleet.heard.reports.values()))

        assert fleet.heard.uids == {key: uid_of(key) for key in fleet.sidecars}
        assert all(fleet.shards.is_tuning(key) for key in fleet.sidecars)
        assert len({shard.pid for shard in fleet.shards.shards} - {os.getpid()}) == 2
        assert {len(fleet.of_shard(0)), len(fleet.of_shard(1))} != {0, 4}
        for number in (0, 1):
            assert fleet.sample("shard_up", shard=str(number)) == 1.0
            assert fleet.sample("shard_resident_memory_bytes", shard=str(number)) > 1e6
            assert fleet.sample("shard_cpu_seconds_total", shard=str(number)) > 0.0
        assert fleet.heard.num_failed == 0


async def test_a_new_target_reaches_the_pods_and_a_service_that_is_gone_is_left_alone() -> None:
    """What was forgotten is polled no more."""
    async with a_sharded_fleet(2) as fleet:
        fleet.follow_all()
        fleet.lead()
        await until(lambda: fleet.all_have("one"))
        kept, gone = fleet.sidecars

        fleet.shards.forget(gone)
        fleet.follow(kept, "two")

        await until(lambda: fleet.sidecars[kept].config_hash == "two")
        await until(lambda: fleet.sidecars[kept].num_reads > 6)
        before = fleet.sidecars[gone].num_reads
        seen = fleet.sidecars[kept].num_reads
        await until(lambda: fleet.sidecars[kept].num_reads > seen + 3)
        assert fleet.sidecars[gone].num_reads - before <= 1  # one may have been under way
        assert fleet.sidecars[gone].config_hash == "one"
        assert not fleet.shards.is_tuning(gone)


async def test_an_unchanged_report_is_as_new_as_its_round() -> None:
    """An autoscaler must not take it for an old one."""
    async with a_sharded_fleet(1, 1) as fleet:
        fleet.follow_all()
        fleet.lead()
        await until(lambda: fleet.heard.reports)
        await until(lambda: next(iter(fleet.heard.reports.values())).acknowledged)
        # A rate needs two answers.
        await until(lambda: next(iter(fleet.heard.reports.values())).throughput is not None)
        before = next(iter(fleet.heard.reports.values()))

        await until(lambda: next(iter(fleet.heard.reports.values())).at > before.at + 1.0)

        after = next(iter(fleet.heard.reports.values()))
        assert replace(after, at=before.at) == before


async def test_without_leadership_nothing_is_changed() -> None:
    """Nor when it was granted only until a moment that has passed."""
    async with a_sharded_fleet(2) as fleet:
        fleet.follow_all("one")
        fleet.lead()
        await until(lambda: fleet.all_have("one"))

        fleet.stand_by()
        fleet.follow_all("two")
        await asyncio.sleep(1.5)  # three rounds, had there been any
        assert fleet.all_have("one")

        fleet.grant(time.monotonic() - 1.0)
        await asyncio.sleep(1.5)
        assert fleet.all_have("one")

        fleet.lead()
        await until(lambda: fleet.all_have("two"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
async def test_a_process_that_is_lost_is_started_again(number: signal.Signals) -> None:
    """It is told its targets anew; the other one goes on as if nothing had happened."""
    async with a_sharded_fleet(4, program=Program(hang_s=10.0)) as fleet:
        fleet.follow_all()
        fleet.lead()
        await until(lambda: fleet.all_have("one"))
        await until(lambda: all(shard.is_up for shard in fleet.shards.shards))
        lost, other = fleet.shards.shards
        pid, other_pid = lost.pid, other.pid
        assert pid is not None

        os.kill(pid, number)
        fleet.follow_all("two")

        await until(lambda: lost.pid not in {pid, None})
        assert not _is_alive(pid)
        await until(lambda: fleet.all_have("two"))
        await until(lambda: all(fleet.shards.is_tuning(key) for key in fleet.sidecars))
        reason = "ended" if number == signal.SIGKILL else "hung"
        assert fleet.sample("shard_ends_total", shard="0", reason=reason) == 1.0
        assert other.pid == other_pid
        # A third where an answer came too late for its reader.
        assert {fleet.sidecars[key].num_new_readers for key in fleet.of_shard(0)} <= {2, 3}


@dataclass(frozen=True, slots=True)
class _Broken(Program):
    """A program that ends at once."""

    def command(self, descriptor: int, number: int) -> Sequence[str]:
        assert descriptor > 0
        return sys.executable, "-c", f"raise SystemExit({1 + number})"


async def test_a_program_that_always_ends_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """It is started ever more seldom, and its services count as untuned."""
    async with a_sharded_fleet(1, 1, _Broken()) as fleet:
        fleet.follow_all()
        fleet.lead()

        await until(lambda: fleet.sample("shard_ends_total", shard="0", reason="ended") >= 3.0)

        assert not fleet.shards.is_tuning("ns/s0")
        assert fleet.sample("shard_up", shard="0") == 0.0
        told = [each.getMessage() for each in caplog.records if each.name.endswith(".shard")]
        pauses = [message.rsplit(" ", 2)[1] for message in told]
        assert pauses[:3] == ["1", "2", "4"]


async def test_no_process_is_started_before_the_first_term() -> None:
    """A standby keeps none in memory."""
    async with a_sharded_fleet(1, 1) as fleet:
        fleet.follow_all()
        fleet.stand_by()
        await asyncio.sleep(0.1)

        assert fleet.shards.shards[0].pid is None


def test_processes_end_with_their_operator() -> None:
    """Even where it is killed: nobody tunes without somebody who leads."""
    script = textwrap.dedent("""
        import asyncio, time
        from paceline_operator.metrics import Metrics
        from paceline_operator.sharding.shard import Program
        from paceline_operator.sharding.shards import Shards
        from paceline_operator.sharding.warm_starts import SharedWarmStart
        from paceline_testing.sharded_fleet import Heard, MemoryStore

        async def main():
            shards = Shards(Heard(), SharedWarmStart(MemoryStore()), Metrics(), 2, Program())
            for shard in shards.shards:
                shard.grant(time.monotonic() + 600)
            running = asyncio.create_task(shards.run())
            while not all(shard.is_up for shard in shards.shards):
                await asyncio.sleep(0.02)
            print(*(shard.pid for shard in shards.shards), flush=True)
            await running

        asyncio.run(main())
    """)
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(_is_alive, pids))

        parent.kill()

        wait_until(lambda: not any(map(_is_alive, pids)))


async def test_marks_of_all_processes_are_one_list() -> None:
    """Of pods that were changed, oldest first; a process that is away has none."""
    async with a_sharded_fleet() as fleet:
        assert await fleet.shards.annotations(0.0) == []
        fleet.follow_all()
        fleet.lead()
        await until(lambda: fleet.all_have("one"))

        marks = await fleet.shards.annotations(0.0)

        assert [mark.time for mark in marks] == sorted(mark.time for mark in marks)


async def test_the_newest_message_of_a_slot_is_sent_in_its_place() -> None:
    """So what waits is bounded, however long the other side does not read."""
    ours, theirs = socket.socketpair()
    channel, other = await to_shard(ours), await to_operator(theirs)
    for until_s in range(1000):
        channel.put("one", Follow("old", _TARGET))
        channel.put("grant", Grant(float(until_s)), is_last=True)
    channel.put("one", Follow("new", _TARGET))
    channel.put("two", Forget("ns/two"))
    sending = asyncio.create_task(channel.send())
    other.put("back", Unchanged("uid", "ns/one", 7.0))
    sending_back = asyncio.create_task(other.send())

    stream = other.messages()
    heard = [await anext(stream) for _ in range(3)]
    back = await anext(channel.messages())

    assert heard == [Follow("new", _TARGET), Grant(999.0), Forget("ns/two")]
    assert back == Unchanged("uid", "ns/one", 7.0)
    assert not channel.has_waiting("one")
    sending.cancel()
    sending_back.cancel()
    channel.close()
    assert [message async for message in stream] == []
    other.close()


@pytest.mark.parametrize(
    "sent", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02no"], ids=["too long", "no message"]
)
async def test_what_is_no_message_is_refused(sent: bytes) -> None:
    """It is a bug, which a new process may not have."""
    ours, theirs = socket.socketpair()
    channel = await to_shard(ours)
    theirs.sendall(sent)

    with pytest.raises(ValueError, match=r"bytes|Expected|malformed|type"):
        await anext(channel.messages())

    channel.close()
    theirs.close()


def _an_entry(model: str, at: float = 1e9) -> WarmStartEntry:
    key = EngineKey(model, "", 500, "float32", "1", "cpu", ())
    theta = (30.0, 2.0, 0.5, 2.0, 50.0)
    return WarmStartEntry(key, SLA(itl_p99_ms=300.0), theta, 256, (1.0,), 20, 400, 280.0, at=at)


async def test_what_two_processes_find_out_is_kept_of_both() -> None:
    """Each knew nothing of the other's when it saved."""
    store = MemoryStore()
    shared = SharedWarmStart(store, lambda: 1e9)

    found = [encode(WarmStart().add(_an_entry(name))) for name in ("a", "b")]
    await asyncio.gather(*(shared.answer(WarmStartFound(n, text)) for n, text in enumerate(found)))
    answer = await shared.answer(WarmStartWanted(7))

    assert (answer.number, answer.problem) == (7, "")
    assert {entry.key.model for entry in decode(answer.text)[0].entries} == {"a", "b"}
    assert {entry.key.model for entry in store.held.entries} == {"a", "b"}
