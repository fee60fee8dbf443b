"""Find test runs, commits and pull requests in the shell commands of agents and in their output."""

import re
import shlex
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final, NamedTuple

MAX_SCRIPT: Final = 20_000  # characters; the rest of a longer script is not parsed
MAX_OUTPUT: Final = 200_000  # characters of the end of the output
INTERESTING: Final = re.compile(r"\b(?:git|gh|glab)\b|test|spec|jest|mocha|tox|nox|phpunit|check")
"""A script without any of these words is not parsed."""
HEREDOC: Final = re.compile(
    r"<<-?[ \t]*(['\"]?)(\w+)\1(?P<rest>[^\n]*)\n.*?^[ \t]*\2\b", re.DOTALL | re.MULTILINE
)
ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
LOOP: Final = re.compile(r"\b(?:for|while|xargs)\b")

WRAPPERS: Final = frozenset(
    {"sudo", "env", "time", "nice", "nohup", "command", "exec", "xvfb-run", "do", "then", "if", "!"}
)
RUNNERS: Final = (
    ("timeout", "*"), ("uv", "run"), ("poetry", "run"), ("pipenv", "run"), ("hatch", "run"),
    ("npx",), ("bunx",), ("pnpm", "exec"), ("pnpm", "dlx"), ("yarn", "exec"), ("bundle", "exec"),
    ("python*", "-m"), ("coverage", "run", "-m"), ("python*",),
)  # fmt: skip
"""Words before the name of the program that is run."""
TESTS: Final = (
    ("pytest",), ("py.test",), ("unittest",), ("tox",), ("nox",), ("manage.py", "test"),
    ("go", "test"), ("cargo", "test"), ("cargo", "nextest"), ("npm", "test"), ("npm", "t"),
    ("npm", "run", "test*"), ("pnpm", "test*"), ("pnpm", "run", "test*"), ("yarn", "test*"),
    ("yarn", "run", "test*"), ("bun", "test"), ("bun", "run", "test*"), ("deno", "test"),
    ("jest",), ("vitest",), ("mocha",), ("ava",), ("playwright", "test"), ("cypress", "run"),
    ("rspec",), ("rake", "test*"), ("rake", "spec"), ("rails", "test*"), ("mvn", "test"),
    ("mvn", "verify"), ("mvnw", "test"), ("gradle", "*test*"), ("gradlew", "*test*"),
    ("dotnet", "test"), ("phpunit",), ("pest",), ("ctest",), ("make", "*test*"), ("make", "check"),
    ("just", "test*"), ("bazel", "test"), ("swift", "test"), ("mix", "test"), ("sbt", "test*"),
    ("flutter", "test"), ("dart", "test"), ("zig", "build", "test"), ("django-admin", "test"),
)  # fmt: skip
PULL_REQUESTS: Final = (("gh", "pr", "create"), ("glab", "mr", "create"))
NOT_RUN: Final = frozenset({"--help", "--dry-run", "--collect-only", "--co", "--version", "--web"})
GIT_OPTIONS_WITH_VALUE: Final = frozenset({"-C", "-c", "--git-dir", "--work-tree"})

COMMIT_LINE: Final = re.compile(
    r"^\[[^\]\n]*?\b(?P<sha>[0-9a-f]{7,40})\] .*$(?P<rest>(?:\n(?!\[).*)*)", re.MULTILINE
)
COMMIT_SUMMARY: Final = re.compile(
    r"^ \d+ files? changed(?:, (?P<added>\d+) insertions?\(\+\))?"
    r"(?:, (?P<removed>\d+) deletions?\(-\))?$",
    re.MULTILINE,
)
NOT_COMMITTED: Final = (
    "nothing to commit",
    "nothing added to commit",
    "no changes added",
    "fatal:",
)
PULL_REQUEST_URL: Final = re.compile(r"https?://\S+/(?:pull|merge_requests)/\d+")
FAILED_TESTS: Final = re.compile(
    r"\b[1-9]\d* (?:failed|failing|failures?|errors?)\b|^FAILED\b|\bFAIL\b|^(?:FAILURES|ERRORS)!",
    re.MULTILINE,
)


class Commit(NamedTuple):
    """A commit. The lines are those that git printed; None: git printed no summary."""

    is_reported: bool
    added: int | None = None
    removed: int | None = None


class ScriptOutcome(NamedTuple):
    """What a script did. ``tests_passed`` is None if it ran no tests or the result is unknown."""

    test_runs: int = 0
    tests_passed: bool | None = None
    commits: Sequence[Commit] = ()
    pull_requests: int = 0


def outcome_of(script: str, output: str, *, is_error: bool, in_background: bool) -> ScriptOutcome:
    """Return the tests, commits and pull requests of a script that was run.

    ``in_background``: the output is not the script's, so only the start of tests is known.
    """
    if not INTERESTING.search(script):
        return ScriptOutcome()
    output = output[-MAX_OUTPUT:]
    commands = [words for words in simple_commands(script[:MAX_SCRIPT]) if not NOT_RUN & {*words}]
    tests = sum(_matches(words, TESTS) for words in commands)
    if in_background:
        return ScriptOutcome(test_runs=tests)
    opened = sum(_matches(words, PULL_REQUESTS) for words in commands)
    return ScriptOutcome(
        test_runs=tests,
        tests_passed=not is_error and not FAILED_TESTS.search(output) if tests else None,
        commits=list(_commits(script, commands, output, is_error=is_error)),
        pull_requests=min(opened, len(set(PULL_REQUEST_URL.findall(output)))),
    )


def simple_commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each command of a script, without wrappers such as ``sudo``.

    The contents of here-documents are dropped, as they are no commands.
    """
    script = HEREDOC.sub(lambda found: found["rest"], script).replace("\\\n", " ")
    lexer = shlex.shlex(script, posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        tokens = list(lexer)
    except ValueError:  # an unclosed quotation mark
        tokens = re.findall(r"[;&|()\n]|[^\s;&|()]+", script)
    words: list[str] = []
    for token in [*tokens, ";"]:
        if token.strip(";&|()\n"):
            words.append(token)
        elif words:
            if command := _without_wrappers(words):
                yield command
            words = []


def _without_wrappers(words: list[str]) -> list[str]:
    while words:
        if ASSIGNMENT.match(words[0]) or words[0] in WRAPPERS:
            words = words[1:]
            continue
        words = [PurePosixPath(words[0]).name, *words[1:]]
        runner = next((one for one in RUNNERS if _begins(words, one)), None)
        if runner is None or len(words) == len(runner):
            return words
        words = words[len(runner) :]
    return words


def _begins(words: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(words) >= len(pattern) and all(
        fnmatchcase(word, wanted) for word, wanted in zip(words, pattern, strict=False)
    )


def _matches(words: Sequence[str], patterns: Sequence[Sequence[str]]) -> bool:
    """Whether the words without options begin with one of the patterns."""
    bare = [word for word in words if not word.startswith("-")]
    return any(_begins(bare, pattern) for pattern in patterns)


def _is_commit(words: Sequence[str]) -> bool:
    """Whether the command makes a new commit; an amended commit replaces one and is not new."""
    if words[0] != "git" or "--amend" in words:
        return False
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in GIT_OPTIONS_WITH_VALUE else 1
    return words[at : at + 1] == ["commit"]


def _commits(
    script: str, commands: Sequence[Sequence[str]], output: str, *, is_error: bool
) -> Iterator[Commit]:
    """Yield the new commits.

    git prints a line such as ``[main 1a2b3c4] subject`` for each. Without that line, because of
    ``--quiet`` or a pipe, a script that succeeds is assumed to have committed.
    """
    count = sum(map(_is_commit, commands))
    if not count:
        return
    reported = list(COMMIT_LINE.finditer(output))
    for found in reported if LOOP.search(script) else reported[:count]:
        summary = COMMIT_SUMMARY.search(found["rest"])
        if summary is None:
            yield Commit(is_reported=True)
        else:
            yield Commit(True, int(summary["added"] or 0), int(summary["removed"] or 0))
    if not reported and not is_error and not any(text in output for text in NOT_COMMITTED):
        yield from [Commit(is_reported=False)] * count
