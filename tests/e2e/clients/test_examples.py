"""Run each file of docs/examples as it is, with one gateway and its sandbox."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from proxy.config.load import read_file
from tests.fakes.servers.gateway import REPOSITORY, Gateway

EXAMPLES = REPOSITORY / "docs/examples"
PROGRAMS = {
    "curl.sh": r"event: message_stop",
    "stream.py": r"Hello from the sandbox(.|\n)+end_turn: \d+ tokens",
    "tools.py": r"The model called get_weather 1 times\.\n.+",
    "new_team.py": r"the key of mobile, shown only this once: sk-br-\S+\n",
}
"""Name of a program -> a pattern of its output."""
ARGUMENTS = {"new_team.py": ["mobile", "50"]}
CONFIGURATIONS = ("failover.toml", "teams.toml")
OTHERS = ("index.md", "claude_settings.json")


def start(name: str, environment: dict[str, str]) -> "subprocess.Popen[str]":
    program = "bash" if name.endswith(".sh") else sys.executable
    return subprocess.Popen(  # noqa: S603 - an example of the documentation
        [program, str(EXAMPLES / name), *ARGUMENTS.get(name, ())],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("examples") / "gateway") as gateway:
        made = gateway.manage(
            "createkey", "--team", "default", "--name", "automation", "--scope", "admin", "--json"
        )
        yield {
            "PATH": os.environ["PATH"],
            "ANTHROPIC_BASE_URL": gateway.url,
            "ANTHROPIC_AUTH_TOKEN": re.search(r"sk-br-[\w-]+", gateway.log)[0],
            "BRIDGE_URL": gateway.url,
            "BRIDGE_ADMIN_KEY": re.search(r"sk-br-[\w-]+", made)[0],
        }


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_each_program_prints_what_it_should(environment):
    running = {name: start(name, environment) for name in PROGRAMS}  # all at the same time
    printed = {name: process.communicate(timeout=120)[0] for name, process in running.items()}

    for name, pattern in PROGRAMS.items():
        assert running[name].returncode == 0, printed[name]
        assert re.search(pattern, printed[name]), printed[name]

    second = start("new_team.py", environment).communicate(timeout=120)[0]
    assert second == "mobile has its key already\n"


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_each_configuration_is_valid(name, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-provider")

    assert read_file(EXAMPLES / name).routes


def test_the_page_lists_each_file_and_a_test_covers_it():
    files = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    page = (EXAMPLES / "index.md").read_text(encoding="utf-8")

    assert files == {*PROGRAMS, *CONFIGURATIONS, *OTHERS}
    assert [name for name in files - {"index.md"} if f"]({name})" not in page] == []
    assert (
        "ANTHROPIC_BASE_URL" in json.loads((EXAMPLES / "claude_settings.json").read_text())["env"]
    )
