"""Do faults at random moments while clients stream answers, and count what went wrong.

    PYTHONPATH=benchmarks:tests python -m chaos --minutes 10 --seed 1

Starts the whole local cluster (root, Linux), installs the chart with two replicas of the operator
and applies a service of the embedded model with two. Clients stream greedy answers through the
ClusterIP all the while. Faults are drawn from the seed, one at a time, each kind once a round:

* operator pod deleted: any of the replicas, by force, so that nobody waits for its end
* leader killed: the process that holds the Lease, by SIGKILL, so the Lease is not given back
* sidecar killed, engine killed: the container's first process in one of the two pods, by SIGKILL
* API server stopped: by SIGTERM, when it stops listening at once and leaves its open watches a
  minute, or by SIGKILL; it is started again 10 s after its end
* etcd's disk slow: etcd is stopped for 1.5 s of every 2 s, by SIGSTOP and SIGCONT, for 20 s. Its
  own disk is not touched: to those who wait for a write the two look alike

After each the benchmark waits until it is calm: the service Ready, both pods and both operators
ready, what was killed replaced, every part of Kubernetes watching again, and a leader that has
done a tuning round after all that, in two looks in succession. The time counts from the fault's
beginning: the API server's absence and the 20 s of a slow disk are part of it, and so are a round's
interval of 5 s, the pauses that the kubelet makes before it starts the same container a second
time, and those that Kubernetes' own parts make before they watch again.

Those parts are waited for because faults come one at a time. After the API server's absence
kube-proxy and the controllers are deaf for up to half a minute more: a pod that dies then keeps its
place in the Service, whatever serves in it. And the node may be silent for five minutes, as where
the API server has replicas: with one API server and Kubernetes' usual 50 s, an absence of a minute
empties every Service of the cluster.

What a request counts as. The client is OpenAI's own: before the first byte it tries connection
errors, 408, 409, 429 and 5xx twice more, after half a second and a second, or what `Retry-After`
says.

* whole: the text and the reason of its end that this prompt gave on the quiet service
* mixed: text that is no beginning of that, whatever became of the stream
* cut by the kill of their own pod: the status line was there before the engine or the sidecar of
  this very pod was killed, and the stream ended without its end in the 30 s after. Which pod it
  was is read from the node's connection table. Nobody can spare a client that
* failed: everything else

Writes by two leaders are read from the API server's audit log, which names the pod of each
service account's token: a write by a pod that began while another pod's write of the Lease was
the last. A write that was under way at a handover is counted apart, because the log does not tell
the order of the store. Requests that a killed API server did not answer are not in the log.

The exit status is 1 where a request failed, a stream was mixed, two leaders wrote, or the cluster
did not get calm.
"""

import argparse
import itertools
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

import httpx

from chaos import audit, report
from chaos.calm import Waiting
from chaos.clients import answers, clients
from chaos.faults import Fault, faults
from chaos.report import Event, Run
from chaos.streams import Answer
from chaos.world import ACCOUNT, NAME, World, world

RESULTS = Path(__file__).parents[1] / "results" / "operator"
CALM_WITHIN_S = 300.0
LOOK_EVERY_S = 1.0
LOOKS = 2
"""Calm in so many looks in succession is calm."""


def main() -> int:
    """Run, write the results, judge; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    with world() as found:
        run = _run(found, seed=chosen.seed, minutes=chosen.minutes, num_clients=chosen.clients)
    _write(run, chosen.results)
    return int(not run.is_good)


def _run(found: World, *, seed: int, minutes: float, num_clients: int) -> Run:
    """Do faults until the time is up or one is not got over."""
    expected = _expected(found)
    print(f"seed {seed}, {num_clients} clients, {minutes:g} minutes", flush=True)
    events: list[Event] = []
    began_at = time.monotonic()
    with clients(found.url(), model=NAME, count=num_clients, seed=seed) as streams:
        for fault in faults(seed):
            time.sleep(fault.quiet_s)
            if time.monotonic() - began_at > 60 * minutes:
                break
            events.append(_do(found, fault, began_at))
            if events[-1].calm_at is None:
                break
    found.log.seek(0)
    findings = audit.find(found.log, account=ACCOUNT)
    return Run(seed, began_at, events, streams, expected, findings)


def _expected(found: World) -> tuple[Answer, ...]:
    """Ask both pods; raises `RuntimeError` where they differ, for then nothing can be judged."""
    ours, theirs = (answers(url, model=NAME) for url in found.pod_urls())
    if ours != theirs:
        raise RuntimeError(f"two quiet pods differ: {ours} and {theirs}")
    for one, other in itertools.permutations(ours, 2):
        if one.text.startswith(other.text):
            raise RuntimeError(f"a mixed stream would not show: {other.text!r} begins {one.text!r}")
    return ours


def _do(found: World, fault: Fault, began_at: float) -> Event:
    """Do one fault and wait until it is calm."""
    at = time.monotonic()
    done = found.do(fault)
    print(f"{at - began_at:6.0f} s  {fault.kind}: {done.victim}", flush=True)
    calm_at, waited_for = _wait(found, Waiting(done.container_id))
    told = "never calm" if calm_at is None else f"calm after {calm_at - at:.1f} s"
    print(f"{time.monotonic() - began_at:6.0f} s  {told}; waited for: {waited_for}", flush=True)
    if calm_at is None:
        print(found.tell(), flush=True)
    return Event(fault.kind.value, done.victim, at, calm_at, waited_for, done.kill)


def _wait(found: World, waiting: Waiting) -> tuple[float | None, str]:
    """Return when the looks that found it calm began, and what it waited for longest."""
    end = time.monotonic() + CALM_WITHIN_S
    looks: list[float] = []
    waits: Counter[str] = Counter()
    while (began_at := time.monotonic()) < end:
        missing = _missing(found, waiting)
        looks = [] if missing else [*looks, time.monotonic()]
        if len(looks) == LOOKS:
            return looks[0], _longest(waits)
        time.sleep(LOOK_EVERY_S)
        if missing:
            waits[missing] += round(time.monotonic() - began_at)
    return None, _longest(waits)


def _missing(found: World, waiting: Waiting) -> str:
    try:
        return waiting.why_not(found.look())
    except httpx.HTTPError:
        return "the API server does not answer"


def _longest(waits: Counter[str]) -> str:
    return ", ".join(f"{reason} {seconds} s" for reason, seconds in waits.most_common(2))


def _write(run: Run, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = f"`make chaos`, seed {run.seed}, on {os.cpu_count()} cores"
    page = f"# Faults at random moments\n\n{report.table(run)}\n\nMade by {command}.\n"
    (folder / "chaos.md").write_text(page)
    (folder / "chaos.json").write_text(json.dumps(report.record(run), indent=1) + "\n")
    print(page)
    print(json.dumps(report.record(run)["bad"], indent=1))


if __name__ == "__main__":
    sys.exit(main())
