"""Run Claude Code, the real program from npm, on one prompt."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.npm import npm_packages
from tests.fakes.servers.gateway import KEY

PACKAGE = "@anthropic-ai/claude-code-linux-x64"
VERSION = "2.1.332"
WINDOW = 100_000


def install() -> str:
    """Return the program's path; skip the test where npm cannot install it."""
    modules = npm_packages(f"claude-code-{VERSION}", f"{PACKAGE}@{VERSION}")
    return str(modules / PACKAGE / "claude")


@dataclass(frozen=True)
class Run:
    """What one run of Claude Code printed."""

    lines: list[dict[str, Any]]  # its JSON lines
    exit_code: int
    errors: str

    def blocks(self, sender: str) -> list[dict[str, Any]]:
        """Return the content blocks of the messages of ``assistant`` or ``user``."""
        return [
            block
            for line in self.lines
            if line["type"] == sender
            for block in line["message"]["content"]
            if isinstance(block, dict)
        ]

    @property
    def text(self) -> str:
        """The text that the run ended with."""
        return str(self.lines[-1].get("result", ""))

    @property
    def succeeded(self) -> bool:
        last = self.lines[-1]
        return self.exit_code == 0 and (last["subtype"], last["is_error"]) == ("success", False)


def run(
    claude: str,
    url: str,
    folder: Path,
    prompt: str,
    *options: str,
    model: str = "chat",
    key: str = KEY,
    within_s: float = 300,
    **variables: str,
) -> Run:
    """Run one prompt in the folder, with a home of its own, and return what Claude Code printed."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    environment = {
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_SMALL_FAST_MODEL": model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "1000",
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(WINDOW),
        "DISABLE_AUTOUPDATER": "1",
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        **variables,
    }
    command = [claude, "-p", prompt, "--output-format", "stream-json", "--verbose", *options]
    done = subprocess.run(  # noqa: S603 - the client under test
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=within_s,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return Run(lines, done.returncode, done.stderr.decode()[-2000:])
