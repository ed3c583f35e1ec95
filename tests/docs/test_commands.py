"""Every command on a page of the documentation is one that its program takes."""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest

from docs_check.blocks import PAGES, ROOT, blocks, inline_code
from docs_check.found import SHELL, name_of, shell_text
from docs_check.manifests import manifest_problems
from docs_check.parses import EXEMPT, make, paceline_mentioned, problems
from docs_check.shell import Command, commands

DATA = {"", "text", "promql", "lua", "html"}
ABRIDGED = {"docs/runtime-api.md": "its answers have ... in the place of what repeats"}
"""Pages whose JSON cannot be read, and why."""
EXAMPLES = ROOT / "examples"
FOLDERS = ("", "pipelines/", "placement/")
MANIFESTS = sorted(path for folder in FOLDERS for path in EXAMPLES.glob(f"{folder}*.yaml"))
NO_SERVICES = {"envoy-gateway.yaml", "prometheus-adapter.yaml"}
"""Values of other charts."""
MENTION = re.compile(r"(?:\.venv/bin/)?(paceline|make) [a-z-]")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_is_one_that_its_program_takes(page: Path) -> None:
    """Commands, options, targets, values and files are there, though nothing is run."""
    found = [(block, each) for block in blocks(page) for each in commands(shell_text(block))]

    assert [f"{block}: {problem}" for block, each in found for problem in problems(each)] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_between_backticks_is_there(page: Path) -> None:
    """A sentence may leave arguments out, but names no command or option that there is not."""
    wrong = []
    for text in inline_code(page):
        if not MENTION.match(text):
            continue
        first = next(commands(text))
        if first.program == "make":
            wrong += [*make(tuple(word for word in first.arguments if not word.isupper()))]
        else:
            wrong += [*paceline_mentioned(list(first.arguments))]

    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_data_can_be_read(page: Path) -> None:
    """YAML is a service, a part of one, or values of the chart; JSON and Python parse."""
    wrong = []
    for block in blocks(page):
        if block.language in {"yaml", "yml"}:
            wrong += [f"{block}: {problem}" for problem in manifest_problems(block.text)]
        elif block.language == "json" and name_of(page) not in ABRIDGED:
            json.loads(block.text)
        elif block.language == "python":
            ast.parse(block.text)
        else:
            assert block.language in SHELL | DATA | {"json"}, f"{block}: {block.language}"

    assert wrong == []


@pytest.mark.parametrize("path", MANIFESTS, ids=name_of)
def test_every_example_is_valid(path: Path) -> None:
    """People begin with these."""
    if path.name not in NO_SERVICES:
        assert manifest_problems(path.read_text()) == []


@pytest.mark.parametrize(
    "command",
    [
        "paceline serve",
        "paceline up",
        "paceline up -f x.yaml --prot 8000",
        "paceline bench run --rate fast",
        "make everything",
        "make SPEED=2 demo",
        "kubectl get pods --watchful",
        "kubectl fetch pods",
        "helm install paceline charts/paceline --set image.tga=1",
        "helm install paceline charts/paceling",
        "helm install paceline charts/paceline --create-namespaces",
        "docker build -f deploy/docker/router.Dockerfile .",
        "python -m paceline_nothing",
        "python benchmarks/nothing.py",
        "curl http://127.0.0.1:8000/v2/models",
        "kubectl apply -f examples/nothing.yaml",
        "frobnicate",
    ],
)
def test_a_wrong_command_is_found(command: str) -> None:
    """Else the tests above would pass on anything."""
    assert [problem for each in commands(command) for problem in problems(each)]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a \\\n  b", ["a b"]),
        ("X=1 a b > c 2>&1 | d &", ["a b", "d"]),
        ("for x in 1 2; do\n  a $x\ndone", ['a "$x"']),
        ("d=$(a b)\ne @$d # no", ["a b", 'e "@$d"']),
        ("a -d '{\n}' |\nb", ["a -d '{\n}'", "b"]),
    ],
    ids=["continued", "redirected", "loop", "substitution", "quotes"],
)
def test_commands_are_found_in_the_shells_own_ways(text: str, seen: list[str]) -> None:
    assert [str(each) for each in commands(text)] == seen


def test_every_exempt_program_is_on_a_page() -> None:
    """A reason for nothing would stay for ever."""
    used = {
        each.program
        for page in PAGES
        for block in blocks(page)
        for each in commands(shell_text(block))
    }

    assert set(EXEMPT) <= used


def test_the_check_of_a_mention_knows_options() -> None:
    assert [*paceline_mentioned(shlex.split("bench run --rate 2"))] == []
    assert [*paceline_mentioned(shlex.split("bench run --speed 2"))]
    assert [*paceline_mentioned(["serve"])]
    assert Command("a", ("b",)).program == "a"
