"""A page's console blocks are run in order in one shell, and what they print can be written."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from docs_check.blocks import ROOT
from docs_check.prepared import Prepared
from docs_check.run import problems, rewritten, steps
from docs_check.said import Said, said
from docs_check.terminal import CommandEndlessError, Result, Terminals

PAGE = ROOT / "docs" / "page.md"
TEXT = """\
# A page

```console
$ a=3
$ echo $a \\
>   apples
4 pears
```

Text.

<!-- run: quietly -->
```console
$ echo noise
```
"""
WITHIN_S = 60.0


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    with Terminals(tmp_path, {"PATH": "/usr/bin:/bin"}) as opened:
        yield opened


def test_commands_share_one_shell(terminals: Terminals) -> None:
    terminals.run("a=3; cd /", within_s=WITHIN_S)

    assert terminals.run("echo $a; pwd", within_s=WITHIN_S).output.split() == ["3", "/"]


def test_status_and_errors_are_seen(terminals: Terminals) -> None:
    result = terminals.run("echo out; echo err >&2; false", within_s=WITHIN_S)

    assert (result.status, result.output.split()) == (1, ["out", "err"])


def test_a_command_runs_apart_until_it_says_so(terminals: Terminals) -> None:
    result = terminals.run_apart("echo one; echo two; echo three; cat", "two", within_s=WITHIN_S)

    assert result.output == "one\ntwo\n"


def test_a_command_that_never_says_so_is_an_error(terminals: Terminals) -> None:
    with pytest.raises(CommandEndlessError, match="one"):
        terminals.run_apart("echo one", "two", within_s=WITHIN_S)


def test_a_command_is_run_again_until_it_says_so(terminals: Terminals) -> None:
    result = terminals.run_until("echo x >> f; cat f", "x\nx", within_s=WITHIN_S)

    assert result.output.count("x") == 2


def test_the_pages_ports_are_free_ones(terminals: Terminals) -> None:
    """Another service may hold 8000; the output names it all the same."""
    taken = terminals.run("echo http://127.0.0.1:8000 > f; cat f", within_s=WITHIN_S)
    real = terminals.run("cut -d: -f3 f", within_s=WITHIN_S)

    assert taken.output.strip() == "http://127.0.0.1:8000"
    assert real.output.strip() == "8000"  # put back wherever it stands


def test_a_port_of_a_page_can_be_one_that_something_listens_on(terminals: Terminals) -> None:
    terminals.forward("8001", "41234")

    terminals.run("echo http://127.0.0.1:8001 > f", within_s=WITHIN_S)
    assert (terminals.folder / "f").read_text() == "http://127.0.0.1:41234\n"


def test_a_command_finds_what_is_prepared(terminals: Terminals) -> None:
    with_input = Prepared(lambda _: iter(["echo pears > f", "a=3"]), around="{} < f")

    assert with_input.run(terminals, 'echo "$a"; cat', within_s=WITHIN_S).output == "3\npears\n"


def test_a_command_is_not_run_where_its_preparation_fails(terminals: Terminals) -> None:
    wrong = Prepared(lambda _: iter(["echo no pears; false", "echo pears"]))

    result = wrong.run(terminals, "echo eaten", within_s=WITHIN_S)
    assert (result.status, result.output) == (1, "no pears\n")


def test_printed_output_takes_the_place_of_what_a_page_said(terminals: Terminals) -> None:
    todo = steps(PAGE, text=TEXT)
    results = [(step, terminals.run(step.exchange.command, within_s=WITHIN_S)) for step in todo]

    wrong = [problem for step, result in results for problem in problems(step, result)]
    page = rewritten(TEXT, PAGE, results)
    assert wrong == ["- <n> pears", "+ <n> apples"]
    assert page == TEXT.replace("4 pears", "3 apples")
    assert [step.exchange.output for step in steps(PAGE, text=page)] == ["", "3 apples\n", ""]


def test_a_command_that_fails_is_a_problem_though_it_prints_what_the_page_says() -> None:
    [_, step, quiet] = steps(PAGE, text=TEXT)

    assert problems(step, Result("4 pears\n", 1, 0.1))
    assert problems(quiet, Result("noise\n", 1, 0.1))
    assert problems(quiet, Result("noise\n", 0, 0.1)) == []


def test_a_comment_says_how_a_block_is_run() -> None:
    assert said('cluster apart until "ready at"') == Said(
        in_cluster=True, is_apart=True, until="ready at"
    )
    assert said('shows a "b c"') == Said(shows=("a", "b c"))


@pytest.mark.parametrize("text", ["apart", "until", "shows", "sometimes"])
def test_a_comment_that_nobody_knows_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        said(text)
