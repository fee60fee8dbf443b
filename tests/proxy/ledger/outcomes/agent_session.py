"""An agent session whose tool calls are really applied to a git repository, as Claude Code would.

Each turn is one request with the whole history. ``Truth`` has the figures that git reports.
"""

import os
import subprocess
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from tests.proxy.admin import factories

GIT_ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "Ben", "GIT_AUTHOR_EMAIL": "ben@example.com", "GIT_COMMITTER_NAME": "Ben",
    "GIT_COMMITTER_EMAIL": "ben@example.com", "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull, "PATH": os.environ["PATH"], "HOME": "/nonexistent",
}  # fmt: skip
REJECTED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was "
    "a file edit, the new_string was NOT written to the file). STOP what you are doing and wait "
    "for the user to tell you how to proceed."
)
PROMPT = """Here is useful information about the environment you are running in:
<env>
Working directory: {folder}
Is directory a git repo: Yes
Platform: linux
</env>

gitStatus: This is the git status at the start of the conversation.
Current branch: {branch}

Main branch (you will usually use this for PRs): main
"""


@dataclass
class Truth:
    """What happened in the repository, without looking at the requests."""

    edits: list[tuple[int, int]] = field(default_factory=list)
    """Lines that git counts as added and removed by each accepted edit tool, in order."""
    shell_edits: list[tuple[int, int]] = field(default_factory=list)
    """The same for changes by shell commands."""
    files: set[str] = field(default_factory=set)
    rejected: int = 0
    failed: int = 0
    tests: list[bool] = field(default_factory=list)


class AgentSession:
    """Plays one session. ``number`` makes the ids of its tool calls unique."""

    def __init__(self, folder: Path, number: int = 1, at: datetime = factories.NOON) -> None:
        self.folder, self.number, self.at = folder, number, at
        self.truth = Truth()
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": "Make it work."}]
        self.session_id = f"session-{number}"
        self.opening: dict[str, Any] = {}
        self.records: list[ExchangeRecords] = []
        folder.mkdir(exist_ok=True)
        self.git("init", "-q", "-b", "main")
        (folder / ".git" / "info" / "exclude").write_text("__pycache__/\n")
        self.git("commit", "-q", "--allow-empty", "-m", "Begin")
        self.git("switch", "-q", "-c", "feature/tiles")

    def run(self, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run a program in the repository; its errors are in the output, as an agent gets them."""
        return subprocess.run(  # noqa: S603 - git and scripts of the tests
            words, cwd=self.folder, env=GIT_ENVIRONMENT | environment, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def git(self, *arguments: str, **environment: str) -> str:
        done = self.run("git", *arguments, **environment)
        done.check_returncode()
        return done.stdout

    def tree(self) -> str:
        """Return the id of a tree with all files as they are, without a change of the index."""
        index = {"GIT_INDEX_FILE": str(self.folder / ".git" / "other-index")}
        self.git("add", "-A", **index)
        return self.git("write-tree", **index).strip()

    def changes(self, tree: str) -> tuple[int, int]:
        """Return the lines that git counts as added and removed since this tree."""
        found = self.git("diff", "--numstat", tree, self.tree())
        rows = [line.split("\t") for line in found.splitlines()]
        return sum(int(row[0]) for row in rows), sum(int(row[1]) for row in rows)

    def call(self, name: str, result: str, *, is_error: bool = False, **tool_input: Any) -> None:
        """Add a tool call with its result to the history, and send the request with it."""
        ident = f"toolu_{self.number:04d}{len(self.messages):012d}"
        use = {"type": "tool_use", "id": ident, "name": name, "input": tool_input}
        found = {"type": "tool_result", "tool_use_id": ident, "content": result}
        if is_error:
            found["is_error"] = True
        self.messages.append({"role": "assistant", "content": [use]})
        self.messages.append({"role": "user", "content": [found]})
        self.request()

    def request(self) -> None:
        """Write the request that sends the whole history."""
        self.at += timedelta(seconds=20)
        prompt = PROMPT.format(folder=self.folder, branch="feature/tiles")
        body = factories.request_body(
            system=[{"type": "text", "text": prompt}], messages=list(self.messages)
        )
        opening = {"session_id": self.session_id, **self.opening}
        records = factories.exchange_records(at=self.at, body=body, opening=opening)
        self.records.append(records)
        write_to_database([records])

    def path(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _edited(self, name: str, before: str) -> None:
        """Store what git counts for the edit of one file: its two versions, compared by git."""
        old = self.folder.parent / f"old-{self.number}"
        old.write_text(before)
        new = str(self.path(name))
        done = self.run("git", "diff", "--no-index", "--numstat", str(old), new)
        added, removed = (done.stdout.split("\t")[:2]) if done.stdout else ("0", "0")
        self.truth.edits.append((int(added), int(removed)))
        self.truth.files.add(name)

    def read(self, name: str) -> None:
        lines = self.path(name).read_text().splitlines()
        numbered = "\n".join(f"{n:6}→{line}" for n, line in enumerate(lines, 1))
        self.call("Read", numbered, file_path=str(self.path(name)))

    def write(self, name: str, content: str) -> None:
        path = self.path(name)
        before = path.read_text() if path.exists() else None
        path.write_text(content)
        text = f"File created successfully at: {path}"
        if before is not None:
            text = f"The file {path} has been updated successfully."
        self._edited(name, before or "")
        self.call("Write", text, file_path=str(path), content=content)

    def edit(self, name: str, old: str, new: str, *, every: bool = False) -> None:
        path = self.path(name)
        before = path.read_text()
        given = {"file_path": str(path), "old_string": old, "new_string": new}
        if every:
            given["replace_all"] = True
        if old not in before:
            self.truth.failed += 1
            text = "<tool_use_error>String to replace not found in file.</tool_use_error>"
            self.call("Edit", text, is_error=True, **given)
            return
        path.write_text(before.replace(old, new, -1 if every else 1))
        self._edited(name, before)
        self.call("Edit", f"The file {path} has been updated successfully.", **given)

    def multi_edit(self, name: str, *pairs: tuple[str, str]) -> None:
        path = self.path(name)
        before = text = path.read_text()
        for old, new in pairs:
            text = text.replace(old, new, 1)
        path.write_text(text)
        self._edited(name, before)
        edits = [{"old_string": old, "new_string": new} for old, new in pairs]
        self.call("MultiEdit", "Applied edits.", file_path=str(path), edits=edits)

    def rejected_edit(self, name: str, old: str, new: str) -> None:
        self.truth.rejected += 1
        given = {"file_path": str(self.path(name)), "old_string": old, "new_string": new}
        self.call("Edit", REJECTED, is_error=True, **given)

    def shell(self, script: str, *, tests: int = 0, edits: bool = False) -> None:
        """Run a script as the tool Bash does; ``tests``: the number of its test commands."""
        before = self.tree() if edits else None
        done = self.run("bash", "-c", script)
        if before is not None:
            self.truth.shell_edits.append(self.changes(before))
        self.truth.tests += [done.returncode == 0] * tests
        text = done.stdout.rstrip("\n")
        failed = done.returncode != 0
        text = f"Exit code {done.returncode}\n{text}" if failed else text
        self.call("Bash", text, is_error=failed, command=script)
