"""Measure the mutation score: the share of injected faults that the tests detect.

    python -m benchmarks.mutation                         a sample of each module
    python -m benchmarks.mutation --only auth --share 5   five times as many mutants of it
    python -m benchmarks.mutation --minutes 20 --keep     continue for 20 minutes, then report

mutmut creates the mutants in a copy of the tree and runs only the tests that reach the function.
mutation.toml lists the files and tests of each module, the sample size, and the mutants that are
equivalent to the code. The tests are those of the fast lane. The same seed selects the same mutants
of the same code. Results are stored beside the copy, so that ``--keep`` continues a run that was
interrupted or that reached its minutes; mutants with few tests come first. Exit code 1: a module is
below the goal. Code outside of functions is not mutated.
"""

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT: Final = Path(__file__).parents[1]
OUTPUT: Final = ROOT / ".bench/mutation"
CONFIG: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MODULES: Final[dict[str, dict[str, Any]]] = CONFIG["module"]
COPIED: Final = ("bridge_project", "proxy", "tests", "translator")
PROGRAM: Final = "manage.py"
"""The tests run it to make the ledger that they copy."""
GOAL: Final = 0.85
UNSEEN: Final = frozenset({"survived", "no tests"})
ARGUMENTS: Final = ["-n0", "-p", "no:cacheprovider", "-o", "django_find_project=false"]
"""Options of pytest, which must not import the project above the mutants."""


class Result(NamedTuple):
    """The result of one mutant."""

    name: str
    status: str  # a status of mutmut
    file: str
    was: str  # the changed lines without their indent
    now: str

    @property
    def why(self) -> str:
        """Return the reason why it is equivalent; empty: it is not."""
        for entry in CONFIG.get("equivalent", ()):
            changed = (self.was.replace(entry["was"], now) for now in entry["now"])
            if entry["file"] == self.file and entry["was"] in self.was and self.now in changed:
                return str(entry["why"])
        return ""


class Score(NamedTuple):
    module: str
    results: list[Result]
    size: int  # of the sample; it is larger than the number of results if time ran out

    @property
    def survivors(self) -> list[Result]:
        return [each for each in self.results if each.status in UNSEEN and not each.why]

    @property
    def equivalent(self) -> list[Result]:
        return [each for each in self.results if each.status in UNSEEN and each.why]

    @property
    def counted(self) -> int:
        return len(self.results) - len(self.equivalent)

    @property
    def share(self) -> float:
        return 1 - len(self.survivors) / self.counted if self.counted else 0.0


def prepare(module: str, folder: Path) -> None:
    """Copy the tree and write mutmut's settings into the copy."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    for name in COPIED:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / PROGRAM, folder)
    settings = {
        "source_paths": ["translator/", "proxy/", "bridge_project/"],
        "only_mutate": MODULES[module]["files"],
        "also_copy": [PROGRAM],
        "pytest_add_cli_args_test_selection": MODULES[module]["tests"],
        "pytest_add_cli_args": ARGUMENTS,
        "process_isolation": "forkserver",
        "timeout_multiplier": 4,  # times the duration of its tests: detects a mutant that hangs
        "timeout_constant": 10.0,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text("\n".join([project, "[tool.mutmut]", *lines, ""]))


def mutate(size: int, seed: int, until: float) -> None:
    """Run a sample and write ``results.json``; called in a new process inside the copy.

    After the time ``until`` (Unix seconds) no further mutant starts.
    """
    from mutmut import __main__ as mutmut
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.state import state
    from mutmut.stats import status_by_exit_code
    from mutmut.utils.format_utils import mangled_name_from_mutant_name

    every = mutmut.collect_source_file_mutation_data
    sample: list[Any] = []

    def sampled(*, mutant_names: Any) -> Any:
        mutants, files = every(mutant_names=())
        mutants.sort(key=lambda each: each[1])
        sample[:] = random.Random(seed).sample(mutants, min(size, len(mutants)))
        return [*sample], files

    columns = TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, auto_refresh=False, console=Console(stderr=True)) as progress:
        task = progress.add_task(Path.cwd().name, total=size)

        def show(*_: Any, **__: Any) -> None:
            done = sum(data.exit_code_by_key[name] is not None for data, name, _ in sample)
            progress.update(task, completed=done, total=len(sample), refresh=True)
            if time.time() > until:
                raise KeyboardInterrupt  # mutmut ends its processes and keeps the results

        mutmut.collect_source_file_mutation_data, mutmut.print_stats = sampled, show
        with contextlib.suppress(KeyboardInterrupt):  # mutmut shows its statistics again at its end
            mutmut._run((), 1)  # noqa: SLF001 - its command has no sample

    tests = state().tests_by_mangled_function_name
    results = []
    ran = [each for each in sample if each[0].exit_code_by_key[each[1]] is not None]
    for data, name, _ in progress.track(ran, description="second run"):
        if data.exit_code_by_key[name] == 0:
            reached = tests[mangled_name_from_mutant_name(name)]
            data.exit_code_by_key[name] = run_again(name, reached)
            data.save()
        diff = get_diff_for_mutant(name, path=data.path).splitlines()[2:]
        was, now = ("\n".join(line[1:].strip() for line in diff if line[:1] == sign)
                    for sign in "-+")  # fmt: skip
        status = status_by_exit_code[data.exit_code_by_key[name]]
        results.append(Result(name, status, str(data.path), was, now)._asdict())
    found = {"size": len(sample), "results": results}
    Path("results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def run_again(mutant: str, tests: Iterable[str]) -> int:
    """Run the tests again in a process that imports the mutant: code may run at import."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--rootdir=.", *ARGUMENTS, *tests]
    environment = {**os.environ, "MUTANT_UNDER_TEST": mutant}
    done = subprocess.run(command, cwd="mutants", env=environment, stdout=subprocess.DEVNULL)  # noqa: PLW1510 - its status is the answer
    return done.returncode


def measured(module: str, folder: Path, size: int, seed: int, minutes: float) -> Score:
    prepare(module, folder)
    command = [sys.executable, "-P", __file__, "--here", str(size), "--seed", str(seed)]
    command += ["--minutes", str(minutes)]
    with (folder / "output.txt").open("wb") as output:
        subprocess.run(command, cwd=folder, stdout=output, check=True)
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return Score(module, [Result(**each) for each in found["results"]], found["size"])


def show(scores: list[Score], seed: int, console: Console) -> None:
    left = Table("module", "mutant", "was", "now", "equivalent, because", show_lines=True)
    for score in scores:
        for each in [*score.survivors, *score.equivalent]:
            left.add_row(score.module, each.name, each.was, each.now, each.why)
    table = Table("module", "mutants", "noticed", "equivalent", "survived", "left", "score")
    for score in scores:
        gone = len(score.survivors)
        table.add_row(score.module, str(len(score.results)), str(score.counted - gone),
                      str(len(score.equivalent)), str(gone),
                      str(score.size - len(score.results)), f"{score.share:.1%}")  # fmt: skip
    console.print(left, table)
    parts = (f"{score.module} {score.share:.1%} of {score.counted}" for score in scores)
    console.print(f"{', '.join(parts)}; seed {seed}", soft_wrap=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation")
    parser.add_argument("--only", default="", help="modules, separated by commas")
    parser.add_argument("--share", type=float, default=1.0, help="factor of each sample size")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder for the copies")
    parser.add_argument("--keep", action="store_true", help="continue in the existing copies")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="start no mutant after them"
    )
    parser.add_argument("--here", type=int, help=argparse.SUPPRESS)  # the process in a copy
    options = parser.parse_args()
    if options.here is not None:
        mutate(options.here, options.seed, time.time() + options.minutes * 60)
        return 0
    chosen = set(options.only.split(",")) - {""} or set(MODULES)
    if unknown := chosen - set(MODULES):
        parser.error(f"no module {', '.join(sorted(unknown))}; known: {', '.join(MODULES)}")
    scores: list[Score] = []
    ends = time.time() + options.minutes * 60
    for module in (name for name in MODULES if name in chosen):
        folder = options.output.absolute() / module
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
        size = max(1, round(MODULES[module]["sample"] * options.share))
        minutes = (
            (ends - time.time()) / 60 / (len(chosen) - len(scores))
        )  # an equal part of the rest
        scores.append(measured(module, folder, size, options.seed, minutes))
    show(scores, options.seed, Console(width=None if sys.stdout.isatty() else 160))
    return 0 if all(score.share >= GOAL for score in scores) else 1


if __name__ == "__main__":
    sys.exit(main())
