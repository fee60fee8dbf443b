"""Count the lines that an edit adds and removes, as ``git diff --numstat`` counts them."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

MAX_DIFFERENCES: Final = 400
"""Texts with more differences are compared without the order of their lines: the exact comparison
takes time with the square of the differences, 25 ms for 400."""
PATCH_FILES: Final = ("*** Add File: ", "*** Update File: ", "*** Delete File: ", "+++ ")
"""The beginnings of lines with the name of a file, in a Codex patch and in a unified diff."""
SEARCH_MARK: Final = re.compile(r"[<-]{3,9} ?SEARCH\b")
MIDDLE_MARK: Final = re.compile(r"={5,9}\s?\Z")
REPLACE_MARK: Final = re.compile(r"[>+]{3,9} ?REPLACE\b")


MAX_STEPS: Final = 100_000
"""Compared lines of one comparison. Long runs of equal lines would otherwise be compared again for
each of up to 800 shifts between the two texts."""


class LineChanges(NamedTuple):
    added: int
    removed: int


def lines_of(text: str) -> list[str]:
    """Return the lines of a whole file, as git counts them."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def changes_of_file(before: str, after: str) -> LineChanges:
    """Return the changed lines between two versions of a whole file."""
    return count_changes(lines_of(before), lines_of(after))


def changes_of_fragment(old: str, new: str) -> LineChanges:
    """Return the changed lines if ``new`` replaces ``old`` somewhere in a file.

    The last line of each text is also compared if it is empty: the rest of the line follows it.
    """
    return count_changes(old.split("\n"), new.split("\n"))


def count_changes(old: Sequence[str], new: Sequence[str]) -> LineChanges:
    """Return the smallest number of added and removed lines that turn ``old`` into ``new``."""
    start = 0
    end = min(len(old), len(new))
    while start < end and old[start] == new[start]:
        start += 1
    shared = 0
    while shared < end - start and old[-1 - shared] == new[-1 - shared]:
        shared += 1
    old, new = old[start : len(old) - shared], new[start : len(new) - shared]
    if not old or not new:
        return LineChanges(len(new), len(old))
    differences = count_differences(old, new)
    if differences is None:
        only_new, only_old = Counter(new) - Counter(old), Counter(old) - Counter(new)
        return LineChanges(only_new.total(), only_old.total())
    surplus = len(new) - len(old)
    return LineChanges((differences + surplus) // 2, (differences - surplus) // 2)


def count_differences(old: Sequence[str], new: Sequence[str]) -> int | None:
    """Return the length of the shortest edit script.

    Return None if it exceeds ``MAX_DIFFERENCES`` or finding it takes more than ``MAX_STEPS``.
    Source: E. Myers, "An O(ND) Difference Algorithm and Its Variations", 1986, figure 2.
    """
    furthest = {1: 0}  # number of the diagonal -> furthest position in ``old`` on it
    steps = 0
    for differences in range(min(len(old) + len(new), MAX_DIFFERENCES) + 1):
        for diagonal in range(-differences, differences + 1, 2):
            below, beside = furthest.get(diagonal + 1, -1), furthest.get(diagonal - 1, -1)
            x = below if below > beside else beside + 1
            y = x - diagonal
            start = x
            while x < len(old) and 0 <= y < len(new) and old[x] == new[y]:
                x, y = x + 1, y + 1
            if x >= len(old) and y >= len(new):
                return differences
            furthest[diagonal] = x
            steps += 1 + x - start
        if steps > MAX_STEPS:
            return None
    return None


class PatchChanges(NamedTuple):
    """The changes of a patch. ``changes`` is None if the patch does not have all of its lines."""

    paths: list[str]
    changes: LineChanges | None


def changes_of_patch(patch: str) -> PatchChanges:
    """Return the files and changed lines of a Codex patch, a unified diff or SEARCH blocks.

    A Codex patch deletes a file without its lines, so the number of removed lines is unknown.
    """
    if each := [count_changes(old, new) for old, new in _search_blocks(patch)]:
        return PatchChanges([], LineChanges(*map(sum, zip(*each, strict=True))))
    lines = patch.split("\n")
    headers = [line for line in lines if line.startswith(PATCH_FILES)]
    paths = [line.partition(" File: ")[2] or line[4:].removeprefix("b/") for line in headers]
    if not paths or any(line.startswith("*** Delete") for line in headers):
        return PatchChanges(paths, None)
    lines = [line for line in lines if not line.startswith(("+++", "---"))]
    added = sum(line.startswith("+") for line in lines)
    removed = sum(line.startswith("-") for line in lines)
    return PatchChanges(paths, LineChanges(added, removed))


def _search_blocks(patch: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the old and the new lines of each SEARCH/REPLACE block."""
    old: list[str] = []
    new: list[str] = []
    target: list[str] | None = None  # the lines that are read now; None: outside of a block
    for line in patch.split("\n"):
        if SEARCH_MARK.match(line):
            old, new = [], []
            target = old
        elif target is old and MIDDLE_MARK.match(line):
            target = new
        elif target is new and REPLACE_MARK.match(line):
            yield old, new
            target = None
        elif target is not None:
            target.append(line)
