"""Tests use the public names of the project. Where one must not, it gives the reason."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).parents[3]
OF_OTHER_PACKAGES: Final = frozenset({
    "_asdict", "_fields", "_make", "_replace",  # of named tuples
    "_base_manager", "_default_manager", "_meta", "_registry",  # of Django
    "_exit", "_request_id", "_value",  # of os, the Anthropic SDK and prometheus_client
})  # fmt: skip
REPLACES: Final = ("monkeypatch.setattr(", "patch.setattr(")
REASON: Final = re.compile(r"# (?!noqa|type:|fmt:)")
READS_PRIVATE_NAMES: Final = {
    "tests/proxy/counters/test_budget_stores.py": "counts SQLite's work, and blocks a transaction",
    "tests/proxy/counters/test_shared_state_failover.py": "blocks a transaction of the file",
    "tests/proxy/gateway/exchange/test_request_context.py": "marks the task of the test as that of the response",
    "tests/proxy/gateway/upstream/test_connection.py": "waits until the loop has sent or noticed something",
    "tests/proxy/gateway/upstream/test_ended_streams.py": "finds objects that should have been freed",
    "tests/proxy/ledger/conftest.py": "reads the frames of a journal without a reader's position",
    "tests/proxy/ledger/journal/test_journal.py": "stops the thread of the journal at one step",
    "tests/proxy/ledger/posting/test_drain_pause.py": "sets the backlog that decides on the pause",
    "tests/proxy/ledger/posting/test_drainer.py": "makes single steps of the drainer's thread",
    "tests/proxy/ledger/posting/test_drift.py": "checks the bound of the names in memory",
    "tests/slow/threats/connections/test_stray_responses.py": "waits until bytes have arrived on an idle connection",
}  # fmt: skip


@cache
def tree_of(path: str) -> ast.Module:
    return ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))


def files_of_tests() -> list[str]:
    found = (REPOSITORY / "tests").rglob("*.py")
    return sorted(str(path.relative_to(REPOSITORY)) for path in found)


def private_names(tree: ast.Module) -> Iterator[str]:
    """Yield the private attributes that a file reads or sets of objects of other files."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
            continue
        is_own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
        if not (is_own or node.attr.startswith("__") or node.attr in own | OF_OTHER_PACKAGES):
            yield node.attr


def replacements_without_reason(text: str) -> Iterator[str]:
    """Yield each line that replaces a name of the project without a comment on it or in the three
    lines above it, with its number. Lines that follow each other share a comment.
    """
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip().startswith(REPLACES) or "setattr(sys," in line:
            continue
        above = number - 1
        while above and lines[above - 1].strip().startswith(REPLACES):
            above -= 1
        if not any(map(REASON.search, lines[max(above - 3, 0) : number])):
            yield f"{number}: {line.strip()}"


def test_only_listed_files_read_private_names() -> None:
    found = {path for path in files_of_tests() if any(private_names(tree_of(path)))}

    assert sorted(found - READS_PRIVATE_NAMES.keys()) == [], "use public names, or give a reason"
    assert sorted(READS_PRIVATE_NAMES.keys() - found) == [], "these reasons are no longer needed"


def test_each_replacement_has_its_reason() -> None:
    missing = [
        f"{path}:{line}"
        for path in files_of_tests()
        for line in replacements_without_reason((REPOSITORY / path).read_text(encoding="utf-8"))
    ]

    assert missing == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("def test():\n    monkeypatch.setattr(module, 'LIMIT', 1)", 1),
        ("    monkeypatch.setattr(module, 'LIMIT', 1)  # noqa: X001", 1),
        ("    # The real limit is slow.\n    monkeypatch.setattr(module, 'LIMIT', 1)", 0),
        ("    monkeypatch.setattr(module, 'LIMIT', 1)  # the real limit is slow", 0),
    ],
)
def test_a_replacement_without_reason_is_found(text: str, count: int) -> None:
    assert len([*replacements_without_reason(text)]) == count


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("recorder._journal = 1", ["_journal"]),
        ("module._cache.clear()", ["_cache"]),
        ("self._journal; row._meta; row.__class__", []),
        ("def _own(): ...\nmodule._own", []),
    ],
)
def test_private_names_of_other_objects_are_found(code: str, names: list[str]) -> None:
    assert [*private_names(ast.parse(code))] == names
