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
    "tests/proxy/admin/test_pages.py": "empties the cache of the notices between two pages",
    "tests/proxy/counters/test_budget_stores.py": "counts SQLite's work, and blocks a transaction",
    "tests/proxy/counters/test_idempotent_responses.py": "one machine loses Redis and uses its own file",
    "tests/proxy/counters/test_redis_client.py": "no public name shows which store counts",
    "tests/proxy/counters/test_shared_state_failover.py": "plants damaged values, and delays one of two stores",
    "tests/proxy/gateway/admission/test_budget_store_outage.py": "waits for the thread of the budgets, and reads what is counted alone",
    "tests/proxy/gateway/admission/test_budget_thresholds.py": "the work that fails is only logged",
    "tests/proxy/gateway/admission/test_budgets.py": "waits for the thread of the budgets",
    "tests/proxy/gateway/admission/test_route_selection.py": "watches the thread of the directory end",
    "tests/proxy/gateway/admission/test_shared_rate_limits.py": "waits for a thread, and cuts the connection to Redis",
    "tests/proxy/gateway/endpoints/test_other_endpoints.py": "waits for a poll that runs",
    "tests/proxy/gateway/endpoints/test_request_repairs.py": "removes what earlier tests added, and checks the bound",
    "tests/proxy/gateway/exchange/test_record_before_upstream.py": "the journal and the slots of a running gateway",
    "tests/proxy/gateway/exchange/test_rejected_bodies.py": "refills the room of a minute",
    "tests/proxy/gateway/exchange/test_request_context.py": "the errors that end a request in its task",
    "tests/proxy/gateway/process_state.py": "compares and ends the state of a whole process",
    "tests/proxy/gateway/snapshot/test_config_cache.py": "compares the prices of two snapshots",
    "tests/proxy/gateway/upstream/test_connection.py": "waits until the loop has sent or noticed something",
    "tests/proxy/gateway/upstream/test_ended_streams.py": "finds objects that should have been freed",
    "tests/proxy/gateway/webhooks/test_delivery.py": "waits for the wake-up of the sender's thread",
    "tests/fakes/servers/webhook_receiver.py": "waits for the wake-up of the sender's thread",
    "tests/proxy/ledger/conftest.py": "reads the frames of a journal without a reader's position",
    "tests/proxy/ledger/journal/test_journal.py": "stops the thread of the journal at one step",
    "tests/proxy/ledger/posting/test_drain_pause.py": "sets the backlog that decides on the pause",
    "tests/proxy/ledger/posting/test_drainer.py": "makes single steps of the drainer's thread",
    "tests/proxy/ledger/posting/test_drift.py": "ends the ten seconds between two writes",
    "tests/proxy/ledger/posting/test_ledger_writer.py": "writes new names before the ten seconds have passed",
    "tests/proxy/ledger/test_commands.py": "counts how many rows the verification reads at once",
    "tests/proxy/ledger/test_recorder.py": "sets a journal and a backlog that no test can produce in time",
    "tests/proxy/server/test_connection_limits.py": "checks that no entry of a client stays in memory",
    "tests/proxy/server/test_django_limits.py": "checks the bound of a cache",
    "tests/repo/access/test_gateway_paths.py": "marks the directory as running, without a database thread",
    "tests/slow/simulation/world.py": "replaces the clock, the disk and the network of a process",
    "tests/slow/threats/accounts/test_key_check.py": "watches a thread that is blocked",
    "tests/slow/threats/connections/test_stray_responses.py": "waits until bytes have arrived on an idle connection",
    "tests/slow/threats/content/test_names.py": "checks the bounds of caches",
    "tests/translator/all_dialects/test_web_search_stream.py": "continues a stream with its own context",
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
