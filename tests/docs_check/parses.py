"""What can be said of a command without running it: its program takes it, its files are there."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import yaml

from docs_check.blocks import ROOT
from docs_check.shell import Command
from local_cluster.cluster import kubectl_command
from paceline_cli.__main__ import main

EXEMPT = {
    "cat": "its arguments are files",
    "cp": "its arguments are files",
    "echo": "its arguments are data",
    "git": "a program of its own; it changes the reader's repository",
    "grep": "its pattern is data; that it finds something is seen when the page is run",
    "sed": "its script is data; what it changes is seen when the page is run",
    "tail": "its arguments are numbers and files",
    "tee": "its arguments are files",
    "cosign": "a program of its own, of those who sign images",
    "crane": "a program of its own, of those who sign images",
    "jq": "a program of its own; its filter is data",
    "pip": "a program of its own; what it installs is what pyproject.toml asks for",
}
"""Programs whose arguments nobody checks here, and why."""

OURS = ("charts/", "crds/", "deploy/", "docs/", "examples/", "benchmarks/", "tests/")
"""A path below one of these folders must be there; another is the reader's own."""


def problems(command: Command) -> list[str]:
    """Say what is wrong with a command; nothing where it is fine."""
    program = command.program.removeprefix(".venv/bin/")
    missing = [
        f"{path}: no such file"
        for word in command.arguments
        if (path := word.rpartition("=")[2].removeprefix("@")).startswith(OURS)
        and "$" not in path
        and not (ROOT / path).exists()
    ]
    if program in EXEMPT:
        return missing
    check = _CHECKS.get(program.rpartition("/")[2])
    if check is None:
        return [f"{program}: no check knows this program"]
    return missing + [problem for problem in check(command.arguments) if problem]


def paceline_mentioned(words: list[str]) -> Iterator[str]:
    """Check a mention such as `paceline bench run --rate`: its command and its options exist."""
    command: click.Command = main
    known = {"--help", "-h", "--version"}
    for word in words:
        if isinstance(command, click.Group) and not word.startswith("-"):
            if word not in command.commands:
                yield f"paceline has no command {word}"
                return
            command = command.commands[word]
        elif word.startswith("-"):
            options = {
                name for each in command.params for name in (*each.opts, *each.secondary_opts)
            }
            if word.partition("=")[0] not in options | known:
                yield f"paceline {command.name} has no option {word}"


def make(words: tuple[str, ...]) -> Iterator[str]:
    """Targets and variables of the Makefile."""
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", text, re.MULTILINE))
    for word in words:
        name, assigned, _ = word.partition("=")
        if assigned and f"$({name}" not in text:
            yield f"the Makefile has no variable {name}"
        if not assigned and name not in targets:
            yield f"the Makefile has no target {name}"


def _paceline(words: tuple[str, ...]) -> Iterator[str]:
    """Parse as the command line does; files that are named need not be there."""
    command: click.Command = main
    context: click.Context | None = None
    rest = list(words)
    try:
        while isinstance(command, click.Group):
            with command.make_context(command.name, rest, context) as context:
                name, found, rest = command.resolve_command(
                    context, [*context._protected_args, *context.args]
                )
            assert found is not None, name
            command = found
        command.make_context(command.name, rest, context)
    except click.exceptions.Exit:
        return  # --help
    except click.ClickException as error:
        yield f"paceline {' '.join(words)}: {error.format_message()}"


def _kubectl(words: tuple[str, ...]) -> Iterator[str]:
    """Ask kubectl, which takes its options before it calls the server: here there is none."""
    nowhere = "--server=http://127.0.0.1:9"  # before an unknown verb it would hide it
    is_verb_first = not words[0].startswith("-")
    done = subprocess.run(
        [kubectl_command(), *words[:is_verb_first], nowhere, *words[is_verb_first:]],
        env=os.environ | {"KUBECONFIG": os.devnull},
        input="",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    wrong = (
        "unknown flag",
        "unknown shorthand",
        "unknown command",
        "invalid argument",
        "flag needs",
    )
    if any(text in done.stderr for text in wrong):
        yield f"kubectl {' '.join(words)}: {done.stderr.strip().splitlines()[0]}"


_HELM = {
    "install": {"--create-namespace", "--skip-crds", "--wait", "--dry-run"},
    "upgrade": {
        "--create-namespace",
        "--install",
        "--reset-then-reuse-values",
        "--reuse-values",
        "--skip-crds",
        "--wait",
    },
    "rollback": {"--wait"},
    "uninstall": {"--wait"},
    "template": {"--include-crds"},
}
_HELM_WITH_VALUE = {"--namespace", "-n", "--set", "--values", "-f", "--timeout", "--version"}


def _helm(words: tuple[str, ...]) -> Iterator[str]:
    """Helm's own options, and values that the chart has."""
    verb, rest = words[0], list(words[1:])
    if verb not in _HELM:
        yield f"helm {verb}: no check knows it"
        return
    names = []
    while rest:
        word = rest.pop(0)
        option, inline, value = word.partition("=")
        if option in _HELM_WITH_VALUE:
            value = value if inline else rest.pop(0)
            if option == "--set" and "charts/paceline" in words:
                yield from (_chart_value(each.partition("=")[0]) for each in value.split(","))
        elif word.startswith("-"):
            if word not in _HELM[verb]:
                yield f"helm {verb} is not known to have {word}"
        else:
            names.append(word)
    if not names:
        yield f"helm {verb} without a release's name"


def _chart_value(path: str) -> str:
    """Say that the chart has no such value; empty where it has."""
    values: Any = _values()
    for name in path.split("."):
        if not isinstance(values, dict) or (values and name not in values):
            return f"the chart has no value {path}"
        values = values.get(name, {})
    return ""


@cache
def _values() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "charts/paceline/values.yaml").read_text())
    return loaded


def _python(words: tuple[str, ...]) -> Iterator[str]:
    """A module that can be imported, or a file that is there; `pip` and `-c` are others' words."""
    if words[0] == "-m":
        if words[1] not in {"pip", "pytest", "mkdocs", "venv"} and not _is_module(words[1]):
            yield f"python -m {words[1]}: no such module"
    elif words[0] != "-c" and not (ROOT / words[0]).exists():
        yield f"python {words[0]}: no such file"


def _is_module(name: str) -> bool:
    folders = ("operator", "cli", "sim", "sidecar", "engine", "kernels", "tests", "benchmarks")
    path = name.replace(".", "/")
    inside = any(
        (ROOT / folder / f"{path}{end}").exists()
        for folder in folders
        for end in (".py", "/__main__.py")
    )
    return inside or importlib.util.find_spec(name.partition(".")[0]) is not None


def _docker(words: tuple[str, ...]) -> Iterator[str]:
    """Dockerfiles of ours; `$part` is each of the three."""
    if words[0] not in {"build", "push"}:
        yield f"docker {words[0]}: no check knows it"
    for option, value in pairwise(words):
        paths = [value.replace("$part", part) for part in ("operator", "sidecar", "engine")]
        if option == "-f":
            yield from (f"{path}: no such file" for path in paths if not (ROOT / path).exists())


def _curl(words: tuple[str, ...]) -> Iterator[str]:
    """Paths that the sidecar or the operator answers."""
    for word in words:
        path = re.match(r"https?://[^/]+(/[^?]*)", word)
        if path and not any(Path(path[1]).match(known) for known in _PATHS):
            yield f"curl {word}: no such path of ours"


_PATHS = (
    "/v1/*", "/v1/*/*", "/v1/*/*/*", "/runtime/*", "/health/*", "/metrics", "/decisions",
    "/healthz", "/readyz",
)  # fmt: skip

_CHECKS: dict[str, Callable[[tuple[str, ...]], Iterator[str]]] = {
    "paceline": _paceline,
    "make": make,
    "kubectl": _kubectl,
    "helm": _helm,
    "docker": _docker,
    "curl": _curl,
    **dict.fromkeys(("python", "python3", Path(sys.executable).name), _python),
}
KNOWN = {*_CHECKS, *EXEMPT, "for"}
"""First words by which a block without a language is known to hold commands."""
