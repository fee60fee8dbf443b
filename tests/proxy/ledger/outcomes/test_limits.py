"""Hostile edits: what they would cost is bounded, and their figures are unknown instead."""

from typing import Any

from proxy.ledger.outcomes import extraction
from proxy.ledger.outcomes.extraction import (
    MAX_WORK,
    KnownFiles,
    LineChanges,
    ToolCall,
    count_changes,
)

MEGABYTE = 2**20


def edit(name: str, **fields: Any) -> ToolCall:
    return ToolCall("toolu_1", name, {"file_path": "a.txt", **fields}, "ok", is_error=False)


def test_a_replacement_that_would_fill_the_memory_is_unknown() -> None:
    files = KnownFiles()
    before = "a" * MEGABYTE
    assert files.follow(edit("Write", content=before)) == (None, before)

    bomb = edit("Edit", old_string="a", new_string="b" * MEGABYTE, replace_all=True)

    assert files.follow(bomb) == (before, None)


def test_edits_are_unknown_after_the_work_of_one_request() -> None:
    files = KnownFiles()
    files.follow(edit("Write", content="a" * MEGABYTE))
    small = edit("Edit", old_string="a", new_string="b")
    assert files.follow(small)[1] is not None

    for _ in range(MAX_WORK // MEGABYTE):
        files.follow(small)

    assert files.follow(small) == (None, None)


def test_a_list_of_edits_ends_at_the_work_of_one_request() -> None:
    files = KnownFiles()
    before = "a" * MEGABYTE
    files.follow(edit("Write", content=before))
    edits = [{"old_string": "a", "new_string": "a"}] * 10_000

    assert files.follow(edit("MultiEdit", edits=edits)) == (None, None)


def test_long_runs_of_equal_lines_are_not_compared_for_each_shift() -> None:
    run = ["x"] * 50_000
    old = [*(f"a{n}" for n in range(100)), *run, *(f"b{n}" for n in range(100))]
    new = [*(f"c{n}" for n in range(100)), *run, *(f"d{n}" for n in range(100))]

    assert extraction.count_differences(old, new) is None
    assert count_changes(old, new) == LineChanges(200, 200)
