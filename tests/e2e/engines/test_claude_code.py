"""Claude Code itself works through the gateway, with a real engine as the upstream.

The model knows the word ``zbash``: it calls the tool Bash with ``cat note.txt``, and after the
tool's result it says that it is done.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.optional_tools import skip_loudly
from tests.fakes.servers.gateway import KEY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PACKAGE = "@anthropic-ai/claude-code"


@pytest.fixture(scope="session")
def claude(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The command line of Claude Code, installed with npm."""
    npm = shutil.which("npm")
    if npm is None:
        skip_loudly("NO CLAUDE CODE: npm is not installed")
    folder = tmp_path_factory.mktemp("claude-code")
    install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder)]
    done = subprocess.run([*install, PACKAGE], capture_output=True, check=False)  # noqa: S603
    command = folder / "node_modules" / ".bin" / "claude"
    if done.returncode or not command.exists():
        skip_loudly(f"NO CLAUDE CODE: npm cannot install it: {done.stderr.decode()[-500:]}")
    return str(command)


def run(claude: str, url: str, folder: Path, prompt: str, *options: str) -> list[dict[str, Any]]:
    """Run one prompt and return the JSON lines that Claude Code printed."""
    home = folder / "home"
    home.mkdir()
    environment = {
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_MODEL": "chat",
        "ANTHROPIC_SMALL_FAST_MODEL": "chat",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "1000",
        "DISABLE_AUTOUPDATER": "1",
        "HOME": str(home),
        "PATH": os.environ["PATH"],
    }
    command = [claude, "-p", prompt, "--output-format", "stream-json", "--verbose", *options]
    done = subprocess.run(  # noqa: S603 - the client under test
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (done.stdout.decode()[-2000:], done.stderr.decode()[-2000:])
    return [json.loads(line) for line in done.stdout.splitlines()]


def blocks(lines: list[dict[str, Any]], sender: str) -> list[dict[str, Any]]:
    return [
        block
        for line in lines
        if line["type"] == sender
        for block in line["message"]["content"]
        if isinstance(block, dict)
    ]


def test_claude_code_runs_a_tool_and_sends_its_result_back(engine_gateway, claude, tmp_path):
    (tmp_path / "note.txt").write_text("the note says seven\n")

    lines = run(claude, engine_gateway.url, tmp_path, "zbash", "--allowedTools", "Bash")

    said = blocks(lines, "assistant")
    (call,) = [block for block in said if block["type"] == "tool_use"]
    assert (call["name"], call["input"]["command"]) == ("Bash", "cat note.txt")
    (result,) = [block for block in blocks(lines, "user") if block["type"] == "tool_result"]
    assert (result["tool_use_id"], result["content"]) == (call["id"], "the note says seven")
    assert said[-1] == {"type": "text", "text": "The tool has answered; I am done."}
    assert (lines[-1]["subtype"], lines[-1]["is_error"]) == ("success", False)
