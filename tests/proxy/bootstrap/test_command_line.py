"""The command line: the overview, the help of a command, errors, and progress of long work."""

import io
import re
import sys
from importlib.metadata import version

import pytest
from django.core.management import get_commands, load_command_class
from rich.progress import Progress

from bridge_project import command
from bridge_project.command import Utility
from proxy.management import rich_output
from proxy.management.base import COMMON
from proxy.management.rich_output import ProgressLines
from tests.for_each import for_each

COMMANDS = sorted(name for name, app in get_commands().items() if app == "proxy")


def test_the_overview_lists_the_gateways_commands_first():
    own, others = Utility(["manage.py", "help"]).main_help_text().split("Django and its packages:")

    assert re.findall(r"^  ([a-z]+) +[A-Z]", own, re.MULTILINE) == COMMANDS
    assert "runserver" in others
    assert not any(re.search(rf"\\b{name}\\b", others) for name in COMMANDS)


@for_each("name", COMMANDS)
def test_help_begins_with_the_commands_own_options(name):
    parser = load_command_class("proxy", name).create_parser("manage.py", name)
    own, common = parser.format_help().split(f"\n{COMMON}:\n")

    listed = own.partition("\n\n")[2]  # after the usage
    assert not re.search(r"^  (-h|-v|--traceback|--settings|--version)\b", listed, re.MULTILINE)
    assert all(option in common for option in ("--help", "--verbosity", "--traceback"))
    assert common.partition("example:\n")[2].startswith(f"  manage.py {name}")


def test_an_error_is_one_line_without_the_name_of_an_exception():
    errors = io.StringIO()
    command = load_command_class("proxy", "importconfig")
    command.stderr = type(command.stderr)(errors)

    with pytest.raises(SystemExit) as ended:
        command.run_from_argv(["manage.py", "importconfig", "--from", "litellm", "/missing.yaml"])

    assert ended.value.code == 2
    assert errors.getvalue() == "error: /missing.yaml: No such file or directory\n"


@pytest.mark.parametrize("words", [["serve"], ["doctor", "--json"], ["version"], []])
def test_windows_is_refused_with_one_line(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "argv", ["messages-bridge", *words])

    with pytest.raises(SystemExit) as ended:
        command.main()

    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"error: {command.WINDOWS}\n"


@pytest.mark.parametrize("word", ["version", "--version"])
def test_the_version_is_that_of_the_gateway(word, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["messages-bridge", word])

    command.main()

    assert capsys.readouterr().out == f"{version('messages-bridge')}\n"
    assert load_command_class("proxy", "serve").get_version() == version("messages-bridge")


def test_progress_is_a_line_now_and_then_without_a_terminal():
    out, seconds = io.StringIO(), [0.0]
    lines = ProgressLines(out, clock=lambda: seconds[0])
    with lines as bar:
        counted, uncounted = bar.add_task("copying", total=25_000), bar.add_task("parts")
        for second in range(1, 26):
            seconds[0] = second
            bar.advance(counted, 1000)
        seconds[0] = 31
        bar.update(uncounted, completed=7)

    assert out.getvalue().splitlines() == [
        "copying: 10,000 of 25,000", "copying: 20,000 of 25,000", "parts: 7",
    ]  # fmt: skip


def test_progress_is_a_bar_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    with rich_output.progress() as bar:
        task = bar.add_task("copying", total=2000)
        bar.update(task, completed=1000)
        bar.refresh()

    assert isinstance(bar, Progress)
    assert "1000/2000" in sys.stderr.getvalue()
