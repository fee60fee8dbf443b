"""Compare the derived outcomes with git: sessions are played in a real repository.

The figures of ``docs/reference/outcomes.md`` come from the slow test:
``pytest -n0 -m slow -s tests/proxy/ledger/outcomes/test_precision.py`` prints them.
"""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db.models import Sum

from proxy.models import SessionOutcomeDay

from .agent_session import AgentSession

pytestmark = pytest.mark.django_db
COLUMNS = [
    field.name
    for field in SessionOutcomeDay._meta.concrete_fields
    if field.get_internal_type() == "BigIntegerField"
]
UNIT_TEST = "import unittest\nclass One(unittest.TestCase):\n    def test_one(self):\n        self.assertTrue({})\n"
HEREDOC = "git add -A && git commit -m \"$(cat <<'EOF'\nKeep the tiles\n\nThe cache's size; `git commit` was run.\nEOF\n)\""


def outcomes() -> dict[str, int]:
    sums = SessionOutcomeDay.objects.aggregate(**{f"sum_{name}": Sum(name) for name in COLUMNS})
    return {name: sums[f"sum_{name}"] or 0 for name in COLUMNS}


class RandomSession(AgentSession):
    """A session of random actions: edits of all kinds, tests, commits, and other commands."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self.random = random.Random(seed)  # noqa: S311 - a repeatable session
        self.names: list[str] = []

    def play(self, actions: int) -> Iterator[None]:
        """Play the session; it yields after each action."""
        self.create()
        yield
        kinds = (
            self.create, self.edit_lines, self.edit_lines, self.edit_lines, self.edit_within_line,
            self.break_line, self.edit_everywhere, self.overwrite, self.edit_twice, self.reject,
            self.fail, self.commit, self.commit, self.run_tests, self.other, self.stream_edit,
        )  # fmt: skip
        for _ in range(actions):
            self.random.choice(kinds)()
            yield

    def lines(self, count: int) -> str:
        pick = self.random
        return "".join(f"{pick.choice(WORDS)} = {pick.randrange(40)}\n" for _ in range(count))

    def some_lines(self) -> tuple[str, list[str]]:
        """Return the name of a file, and consecutive lines of it."""
        name = self.random.choice(self.names)
        text = self.path(name).read_text().splitlines(keepends=True)
        at = self.random.randrange(len(text))
        return name, text[at : at + self.random.randrange(1, 6)]

    def create(self) -> None:
        self.names.append(f"tiles/part_{len(self.names)}.py")
        self.write(self.names[-1], self.lines(self.random.randrange(3, 60)))

    def edit_lines(self) -> None:
        name, found = self.some_lines()
        kept = found[: self.random.randrange(len(found) + 1)]
        new = self.lines(self.random.randrange(1, 8))
        self.edit(name, "".join(found), "".join(kept) + new)

    def edit_within_line(self) -> None:
        name, found = self.some_lines()
        word = found[0].split(" ")[0]
        self.edit(name, f"{word} =", f"{word}: int =")

    def break_line(self) -> None:
        name, found = self.some_lines()
        word = found[0].split(" ")[0]
        self.edit(name, f"{word} =", f"{word} = 1\nother =")

    def edit_everywhere(self) -> None:
        name = self.random.choice(self.names)
        if self.random.random() < 0.7:
            self.read(name)
        self.edit(name, " = 7\n", " = 8\n", every=True)

    def overwrite(self) -> None:
        name = self.random.choice(self.names)
        self.read(name)
        text = self.path(name).read_text().splitlines(keepends=True)
        at = self.random.randrange(len(text))
        self.write(name, "".join([*text[:at], self.lines(4), *text[at + 2 :]]))

    def edit_twice(self) -> None:
        name, found = self.some_lines()
        first, last = found[0], found[-1]
        self.multi_edit(name, (first, first + self.lines(2)), (last, self.lines(1)))

    def reject(self) -> None:
        self.rejected_edit(self.random.choice(self.names), "a = 1\n", "a = 2\n")

    def fail(self) -> None:
        self.edit(self.random.choice(self.names), "this line is nowhere\n", "x\n")

    def commit(self) -> None:
        script = self.random.choice(COMMITS)
        if "--amend" not in script or self.git("log", "main..HEAD"):  # main stays as it is
            self.shell(script)

    def run_tests(self) -> None:
        self.write("test_one.py", UNIT_TEST.format(self.random.random() < 0.6))
        self.shell(self.random.choice(TEST_SCRIPTS), tests=1)

    def other(self) -> None:
        self.shell(self.random.choice(OTHERS))

    def stream_edit(self) -> None:
        self.shell(f"sed -i 's/ = 3$/ = 33/' {self.random.choice(self.names)}", edits=True)


WORDS = ("width", "height", "zoom", "tiles", "limit", "cache", "x", "y", "scale", "self.size")
COMMITS = (
    "git add -A && git commit -m 'Keep the tiles'",
    HEREDOC,
    "git add -A; git commit -qm 'Count the tiles; git commit'",
    "git commit -am 'Measure' | tail -3",
    "git -c core.abbrev=10 commit -m 'Nothing' ; true",
    "git add . && git commit --amend --no-edit",
    "git add -A && git commit -m 'One' && echo x >> notes.txt && git add -A && git commit -m 'Two'",
    "git commit -m 'Nothing is staged'",
)
TEST_SCRIPTS = (
    "python3 -m unittest -q",
    "PYTHONDONTWRITEBYTECODE=1 timeout 60 python3 -m unittest test_one.py",
    "echo testing && python3 -m unittest 2>&1",
)
OTHERS = (
    "ls -la", "git status", "git log --oneline -5", 'echo "git commit -m x"; echo pytest',
    "grep -rn pytest . | head -3", "cat > plan.txt <<'EOF'\ngit commit -m x\npytest\nEOF",
    "git diff --stat | tail -1", "false",
)  # fmt: skip


class Score:
    """Adds up what was derived and what is true; ``both`` is the part on which they agree."""

    def __init__(self) -> None:
        self.derived: Counter[str] = Counter()
        self.true: Counter[str] = Counter()
        self.both: Counter[str] = Counter()

    def add(self, name: str, derived: int, true: int) -> None:
        self.derived[name] += derived
        self.true[name] += true
        self.both[name] += min(derived, true)

    def precision(self, name: str) -> float:
        return self.both[name] / max(1, self.derived[name])

    def recall(self, name: str) -> float:
        return self.both[name] / max(1, self.true[name])

    def lines(self) -> list[str]:
        return [
            f"{name}: true {self.true[name]:,}, derived {self.derived[name]:,}, "
            f"precision {100 * self.precision(name):.1f} %, recall {100 * self.recall(name):.1f} %"
            for name in self.true
        ]


def score_of(folder: Path, seeds: range, actions: int) -> Score:
    """Play sessions, and compare the figures after each action: errors must not cancel out."""
    score = Score()
    for seed in seeds:
        SessionOutcomeDay.objects.all().delete()
        session = RandomSession(folder / f"repository-{seed}", seed)
        before = figures_of(session)
        for _ in session.play(actions):
            after = figures_of(session)
            for name, (derived, true) in after.items():
                score.add(name, derived - before[name][0], true - before[name][1])
            before = after
    return score


def figures_of(session: AgentSession) -> dict[str, tuple[int, int]]:
    """Return the derived and the true value of each figure."""
    truth, found = session.truth, outcomes()
    edit_kinds = ("edit", "multi_edit", "write", "notebook_edit")
    log = session.git("log", "--format=%s", "main..HEAD").splitlines()
    every_change = truth.edits + truth.shell_edits
    return {
        "edits accepted": (sum(found[f"{k}_accepted"] for k in edit_kinds), len(truth.edits)),
        "edits rejected": (sum(found[f"{k}_rejected"] for k in edit_kinds), truth.rejected),
        "edits failed": (sum(found[f"{k}_failed"] for k in edit_kinds), truth.failed),
        "files edited": (found["files_edited"], len(truth.files)),
        "lines added by edits": (found["lines_added"], sum(a for a, _ in truth.edits)),
        "lines removed by edits": (found["lines_removed"], sum(r for _, r in truth.edits)),
        "lines added, all changes": (found["lines_added"], sum(a for a, _ in every_change)),
        "lines removed, all changes": (found["lines_removed"], sum(r for _, r in every_change)),
        "test runs passed": (found["test_runs_passed"], sum(truth.tests)),
        "test runs failed": (found["test_runs_failed"], truth.tests.count(False)),
        "commits": (found["commits_reported"] + found["commits_derived"], len(log)),
    }


def check(score: Score) -> None:
    print("\n".join(score.lines()))  # noqa: T201 - the figures of the documentation
    assert score.precision("edits accepted") == score.recall("edits accepted") == 1
    assert score.precision("edits rejected") == score.recall("edits rejected") == 1
    assert score.precision("edits failed") == score.recall("edits failed") == 1
    assert score.precision("files edited") == score.recall("files edited") == 1
    for name in ("lines added by edits", "lines removed by edits", "commits"):
        assert score.precision(name) > 0.95, name
        assert score.recall(name) > 0.95, name
    for name in ("test runs passed", "test runs failed"):
        assert score.precision(name) == score.recall(name) == 1, name


def test_the_derived_figures_are_those_of_git(tmp_path: Path) -> None:
    score = score_of(tmp_path, range(2), 25)

    check(score)


@pytest.mark.slow
def test_eight_long_sessions_have_the_figures_of_git(tmp_path: Path) -> None:
    check(score_of(tmp_path, range(100, 108), 100))
