"""What a command of a page finds that its reader has: another's sweep, a log, a forwarded port.

All of it is made in the copy of the tree, and in the shell, in which the command then runs.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from docs_check.terminal import Result, Terminals

_SERVICE = "http://127.0.0.1:8000"
_BRIEF = "--requests 40 --prompt-tokens 32 --output-tokens 8"


def _nothing(_: Terminals) -> Iterator[str]:
    yield from ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """What comes before and around a command."""

    before: Callable[[Terminals], Iterator[str]] = _nothing
    """Yields what the shell is to run first; the command is not run where that fails."""

    around: str = "{}"
    """The command in place of `{}`: a file is its input, traffic runs beside it, it is brief."""

    def run(self, terminals: Terminals, command: str, *, within_s: float) -> Result:
        """Prepare and run a command; return how it ended, or the preparation that failed."""
        *lines, last = (*self.before(terminals), self.around.replace("{}", command))
        for line in lines:
            if (result := terminals.run(line, within_s=within_s)).status:
                return result
        return terminals.run(last, within_s=within_s)


def _requests(_: Terminals) -> Iterator[str]:
    """Leave something to tell: a service that nobody has asked has no latencies."""
    yield f"paceline bench run --url {_SERVICE} --rate 2 {_BRIEF} --out out/before"


def _admin(terminals: Terminals) -> Iterator[str]:
    """Port 8001 is the pod's runtime API; its token lies in a file and in the environment."""
    state = json.loads((terminals.folder / "state/paceline/quickstart.json").read_text())
    terminals.forward("8001", str(urlsplit(state["admin_url"]).port))
    yield f"cp {state['token_file']} token; export TOKEN=$(cat token)"
    yield "export CURL_HOME=$PWD; echo fail > .curlrc"  # an answer of 400 or more is a failure


def _asked_admin(terminals: Terminals) -> Iterator[str]:
    yield from _requests(terminals)
    yield from _admin(terminals)


def _pipeline(terminals: Terminals) -> Iterator[str]:
    """One service stands in for the three."""
    for named in ("8001", "8002", "8003"):
        terminals.forward(named, terminals.port("8000"))
    yield "echo 'What is the capital of France?' > questions.txt"


def _own_log(terminals: Terminals) -> Iterator[str]:
    """Write `telemetry.json` and, as the page says, `ours.jsonl`."""
    yield from _asked_admin(terminals)
    yield (
        'curl -s -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8001/runtime/telemetry?since=0 '
        "> telemetry.json && jq -ce '.requests[]' telemetry.json > ours.jsonl"
    )


def _two_runs(_: Terminals) -> Iterator[str]:
    """Measure with targets that are kept; the baseline is the same run."""
    yield (
        f"paceline bench run --url {_SERVICE} --rate 1 {_BRIEF} --ttft 60s --itl 30s --out out/now"
    )
    yield "rm -rf baseline; cp -r out/now baseline"


def _sweeps(_: Terminals) -> Iterator[str]:
    for machine in ("out/h100", "l4", "a100"):
        yield f"mkdir -p {machine}; cp benchmarks/results/cpu/sweep.json {machine}"


def _wheels(_: Terminals) -> Iterator[str]:
    yield "pip download --quiet --only-binary=:all: --dest wheels msgspec pydantic-settings"


def _url(_: Terminals) -> Iterator[str]:
    yield f"export URL={_SERVICE}"


AS_IT_IS = Prepared()
AFTER_REQUESTS = Prepared(_requests)
FORWARDED = Prepared(_asked_admin)
UNDER_TRAFFIC = Prepared(
    _admin,
    around=f"paceline bench run --url {_SERVICE} --rate 2 {_BRIEF} --out out/beside > beside.txt & "
    "{}; ended=$?; wait; (exit $ended)",
)
THREE_SERVICES = Prepared(_pipeline)
QUESTIONS = Prepared(_pipeline, around="{} < questions.txt")
OWN_LOG = Prepared(_own_log)
TELEMETRY = Prepared(_own_log, around="{} < telemetry.json")
URL = Prepared(_url)
TWO_RUNS = Prepared(_two_runs)
SWEEPS = Prepared(_sweeps)
# A whole sweep takes hours on slow cores, and is a command of its own: this one is for its table.
SWEEPS_AND_FEW_POINTS = Prepared(
    _sweeps, around="{} --quick --rate 2 --prompt-tokens 32 --output-tokens 8"
)
WHEELS = Prepared(_wheels)
