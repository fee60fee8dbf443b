"""Run every code block of every page, or check its mark that names another test or a reason.

The language decides how a block runs. A mark may precede it: ``<!-- run by: PATH -->`` (another test
runs it), ``<!-- example: KIND -->`` (tests/proxy/reports/test_docs_examples.py does),
``<!-- run with npm: PACKAGES -->`` or ``pip`` (it runs here, in an environment of its own) or
``<!-- not run: REASON -->``. All others run here, against a gateway with the sandbox upstream.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from bridge_project.env import VARIABLES
from proxy.config.load import read_file
from tests.fakes.servers.gateway import Gateway
from tests.fakes.servers.prepared import copy_ledger

REPOSITORY = Path(__file__).parents[3]
PAGES = [
    *sorted(REPOSITORY.glob("*.md")),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
    *sorted((REPOSITORY / "deploy").rglob("*.md")),
]
FENCE = re.compile(
    r"^(?P<indent> *)(?:<!-- (?P<mark>run by|run with \w+|not run|example): (?P<why>[^\n]+?) -->\n *)?"
    r"```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
EXAMPLES = "tests/proxy/reports/test_docs_examples.py"


class Block(NamedTuple):
    page: str
    line: int
    language: str
    mark: str
    why: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    for page in PAGES:
        content = page.read_text(encoding="utf-8")
        for found in FENCE.finditer(content):
            lines = found["text"].splitlines()
            text = "\n".join(line.removeprefix(found["indent"]) for line in lines) + "\n"
            yield Block(
                str(page.relative_to(REPOSITORY)),
                content[: found.start("language")].count("\n") + 1,
                found["language"], found["mark"] or "", found["why"] or "", text,
            )  # fmt: skip


ALL = list(blocks())
HERE = [block for block in ALL if not block.mark and block.language != "text"]
# Replaces a program that a page starts: it sends a request with the given environment.
CLAUDE = """#!/usr/bin/env python
import os, anthropic
client = anthropic.Anthropic(
    base_url=os.environ["ANTHROPIC_BASE_URL"], auth_token=os.environ["ANTHROPIC_AUTH_TOKEN"]
)
history = [{"role": "user", "content": "Hello"}]
assert client.messages.create(model="claude-sonnet-5-5", max_tokens=999, messages=history).content
"""
LITELLM = """
model_list:
  - model_name: claude-sonnet
    litellm_params: {model: openai/gpt-5.2, api_key: os.environ/OPENAI_API_KEY}
"""
NAMED = {name: "sk-of-the-test-" + name.lower() for name in ("OPENAI_API_KEY", "HOOK_SECRET")}
NAMED["BRIDGE_KEY_CI"] = "sk-br-" + "c1" * 22


class Reader:
    """Runs blocks as a reader of the pages: with a running gateway and a scratch folder."""

    def __init__(self, folder: Path, gateway: Gateway) -> None:
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        for name, text in {
            "claude": CLAUDE,
            "manage.py": f'#!/bin/sh\nexec python {REPOSITORY}/manage.py "$@"\n',
        }.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        (folder / "backups").mkdir()
        copy_ledger(folder / "data")
        (folder / "data/journal-0").mkdir()  # of the gateway that served this ledger
        (folder / "config.yaml").write_text(LITELLM)
        self.key = re.search(r"sk-br-[\w-]+", gateway.log)[0]
        self.replacements = {
            "http://127.0.0.1:8000": gateway.url,
            "sk-br-…": self.key,
            ".venv/bin/python manage.py": "manage.py",
            "/backups/": f"{folder}/backups/",
        }
        inherited = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        self.environment = {
            **inherited,
            **NAMED,
            "PATH": os.pathsep.join(
                [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
            ),
            "BRIDGE_DATA_DIR": str(folder / "data"),
        }

    def meaning(self, text: str) -> str:
        for written, replacement in self.replacements.items():
            text = text.replace(written, replacement)
        assert "…" not in text, "the block has a blank that the page does not explain"
        return text

    def run(self, command: list[str]) -> str:
        done = subprocess.run(  # noqa: S603 - a block of a page
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def shell(self, text: str) -> str:
        return self.run(["bash", "-euc", self.meaning(text)])

    def python(self, text: str) -> str:
        return self.run([sys.executable, "-c", self.meaning(text)])

    def toml(self, text: str) -> None:
        """Read the file as ``applyconfig`` does; a block of start.md applies that page's file."""
        path = self.folder / "another.toml"
        path.write_text(text)
        read_file(path)

    def settings(self, text: str) -> None:
        names = {line.partition("=")[0] for line in text.splitlines() if line.strip()}
        unknown = {name for name in names if name.removesuffix("_FILE") not in VARIABLES}
        assert names
        assert unknown == set()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("reader")
    with Gateway(folder / "gateway") as gateway:
        made = Reader(folder, gateway)
        start = next(b for b in ALL if b.page == "docs/start.md" and b.language == "toml")
        (folder / "bridge.toml").write_text(start.text)
        yield made


RUNNERS: dict[str, Callable[[Reader, str], object]] = {
    "sh": Reader.shell,
    "console": Reader.shell,
    "python": Reader.python,
    "toml": Reader.toml,
    "env": Reader.settings,
    "json": lambda reader, text: json.loads(reader.meaning(text)),
    "yaml": lambda _, text: list(yaml.safe_load_all(text)),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", HERE, ids=lambda block: block.name)
def test_a_block_runs_unchanged(reader, block, monkeypatch):
    if "curl" in block.text and not shutil.which("curl"):
        pytest.skip("curl is not installed: this block DID NOT RUN")
    for name, value in NAMED.items():
        monkeypatch.setenv(name, value)

    RUNNERS[block.language](reader, block.text)


def npm(folder: Path, packages: list[str]) -> tuple[list[str], Path]:
    """Install npm packages; return the command that runs a block and the block's file."""
    install("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, *packages)
    return ["node"], folder / "block.mjs"


def pip(folder: Path, packages: list[str]) -> tuple[list[str], Path]:
    install(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, folder / "v")
    python = str(folder / "v/bin/python")
    install(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, *packages)
    return [python], folder / "block.py"


def install(*command: str | Path) -> None:
    program = shutil.which(str(command[0]))
    if program is None:
        pytest.skip(f"{command[0]} is not installed: this block DID NOT RUN")
    try:
        done = subprocess.run(  # noqa: S603 - our own command line
            [program, *command[1:]], capture_output=True, text=True, timeout=280, check=False
        )
    except subprocess.TimeoutExpired as late:
        pytest.skip(f"its packages do not arrive, this block DID NOT RUN: {late}")
    if done.returncode:
        pytest.skip(f"its packages cannot be had, this block DID NOT RUN: {done.stderr[-300:]}")


INSTALLERS = {"run with npm": npm, "run with pip": pip}


@pytest.mark.slow  # it installs packages from the network
@pytest.mark.timeout(900)
@pytest.mark.parametrize("block", [b for b in ALL if b.mark in INSTALLERS], ids=lambda b: b.name)
def test_a_block_runs_with_packages_of_its_own(reader, block, tmp_path):
    program, place = INSTALLERS[block.mark](tmp_path, block.why.split())
    place.write_text(reader.meaning(block.text))

    assert reader.run([*program, str(place)]).strip()


def test_no_block_is_without_a_language_or_a_reason():
    unmarked = [b.name for b in ALL if b.language not in {*RUNNERS, "text"} and not b.mark]

    assert len(ALL) > 30
    assert unmarked == []
    assert [b.name for b in ALL if b.mark.startswith("run with") and b.mark not in INSTALLERS] == []
    assert [block.name for block in ALL if block.mark and len(block.why) < 3] == []


def test_every_fence_is_found():
    """A block that the pattern does not match would never run."""
    for page in PAGES:
        fences = re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)
        seen = [block for block in ALL if block.page == str(page.relative_to(REPOSITORY))]
        assert len(fences) == 2 * len(seen), page.name


@pytest.mark.parametrize("block", [b for b in ALL if b.mark == "run by"], ids=lambda b: b.name)
def test_the_test_that_a_mark_names_exists(block):
    path = REPOSITORY / block.why

    assert path.is_file()
    assert block.why.startswith(("tests/", ".ci/"))


def test_the_examples_of_the_reports_are_run_on_their_own_page():
    found = {block.page for block in ALL if block.mark == "example"}

    assert found <= {"docs/reference/reports-api.md"}
    assert (REPOSITORY / EXAMPLES).is_file()
