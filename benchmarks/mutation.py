"""The mutation score of promise G23: of the faults put into the code, how many do tests notice?

    python -m benchmarks.mutation                         a sample of each module
    python -m benchmarks.mutation --only auth --share 5   five times as many mutants of it

mutmut makes the mutants, knows which tests reach which function, and runs those alone, in a copy of
the tree. Which files and tests belong to a module, how large its sample is and which mutants
change nothing that anybody can see is told in mutation.toml. The same seed takes the same mutants
of the same code. Results are kept beside the copy, so that a run which was interrupted goes on;
exit code 1: a module is below the goal. Mutants of code outside of functions are not made.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT: Final = Path(__file__).parents[1]
OUTPUT: Final = ROOT / ".bench/mutation"
TOLD: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MODULES: Final[dict[str, dict[str, Any]]] = TOLD["module"]
COPIED: Final = ("bridge_project", "proxy", "tests", "translator", "pyproject.toml")
GOAL: Final = 0.85
UNSEEN: Final = frozenset({"survived", "no tests"})
ARGUMENTS: Final = ["-n0", "-p", "no:cacheprovider", "-o", "django_find_project=false"]
"""For pytest, which must not find and import the project above the mutants."""


class Result(NamedTuple):
    """What became of one mutant."""

    name: str
    status: str  # as mutmut calls it
    file: str
    was: str  # the lines that were changed, without their indent
    now: str

    @property
    def why(self) -> str:
        """Why nobody can see it; empty: somebody could."""
        for told in TOLD.get("equivalent", ()):
            changed = (self.was.replace(told["was"], now) for now in told["now"])
            if told["file"] == self.file and told["was"] in self.was and self.now in changed:
                return str(told["why"])
        return ""


class Score(NamedTuple):
    module: str
    results: list[Result]

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
    """A copy of the tree, and mutmut's settings in it."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    for name in COPIED[:-1]:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    settings = {
        "source_paths": ["translator/", "proxy/", "bridge_project/"],
        "only_mutate": MODULES[module]["files"],
        "pytest_add_cli_args_test_selection": MODULES[module]["tests"],
        "pytest_add_cli_args": ARGUMENTS,
        "process_isolation": "forkserver",
        "timeout_multiplier": 4,  # of what its tests took: a mutant that hangs is noticed, too
        "timeout_constant": 10.0,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text("\n".join([project, "[tool.mutmut]", *lines, ""]))


def mutate(size: int, seed: int) -> None:
    """In a process of its own, in the copy: run a sample and keep ``results.json``."""
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

        mutmut.collect_source_file_mutation_data, mutmut.print_stats = sampled, show
        mutmut._run((), 1)  # noqa: SLF001 - its command has no sample

    tests = state().tests_by_mangled_function_name
    results = []
    for data, name, _ in progress.track(sample, description="a second look"):
        if data.exit_code_by_key[name] == 0:
            reached = tests[mangled_name_from_mutant_name(name)]
            data.exit_code_by_key[name] = second_look(name, reached)
            data.save()
        diff = get_diff_for_mutant(name, path=data.path).splitlines()[2:]
        was, now = ("\n".join(line[1:].strip() for line in diff if line[:1] == sign)
                    for sign in "-+")  # fmt: skip
        status = status_by_exit_code[data.exit_code_by_key[name]]
        results.append(Result(name, status, str(data.path), was, now)._asdict())
    Path("results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")


def second_look(mutant: str, tests: Iterable[str]) -> int:
    """The tests once more, in a process that imports the mutant: code may run at import, too."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--rootdir=.", *ARGUMENTS, *tests]
    environment = {**os.environ, "MUTANT_UNDER_TEST": mutant}
    done = subprocess.run(command, cwd="mutants", env=environment, stdout=subprocess.DEVNULL)  # noqa: PLW1510 - its status is the answer
    return done.returncode


def measured(module: str, folder: Path, size: int, seed: int) -> Score:
    prepare(module, folder)
    # The spool's writer starts without site-packages, and a mutant imports mutmut.
    paths = [path for path in sys.path if path.endswith("-packages")]
    paths += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environment = {**os.environ, "LAWS": "few", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-P", __file__, "--here", str(size), "--seed", str(seed)]
    with (folder / "said.txt").open("wb") as said:
        subprocess.run(command, cwd=folder, env=environment, stdout=said, check=True)
    told = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return Score(module, [Result(**each) for each in told])


def show(scores: list[Score], seed: int, console: Console) -> None:
    left = Table("module", "mutant", "was", "now", "equivalent, because", show_lines=True)
    for score in scores:
        for each in [*score.survivors, *score.equivalent]:
            left.add_row(score.module, each.name, each.was, each.now, each.why)
    table = Table("module", "mutants", "noticed", "equivalent", "survived", "score")
    for score in scores:
        gone = len(score.survivors)
        table.add_row(score.module, str(len(score.results)), str(score.counted - gone),
                      str(len(score.equivalent)), str(gone), f"{score.share:.1%}")  # fmt: skip
    console.print(left, table)
    parts = (f"{score.module} {score.share:.1%} of {score.counted}" for score in scores)
    console.print(f"{', '.join(parts)}; seed {seed}", soft_wrap=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation")
    parser.add_argument("--only", default="", help="modules, with commas between them")
    parser.add_argument("--share", type=float, default=1.0, help="of each sample's size")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="a folder for the copies")
    parser.add_argument("--keep", action="store_true", help="go on in the copies that are there")
    parser.add_argument("--here", type=int, help=argparse.SUPPRESS)  # the process in a copy
    options = parser.parse_args()
    if options.here is not None:
        mutate(options.here, options.seed)
        return 0
    chosen = set(options.only.split(",")) - {""} or set(MODULES)
    if unknown := chosen - set(MODULES):
        parser.error(f"no module {', '.join(sorted(unknown))}; known: {', '.join(MODULES)}")
    scores = []
    for module in (name for name in MODULES if name in chosen):
        folder = options.output.absolute() / module
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
        size = max(1, round(MODULES[module]["sample"] * options.share))
        scores.append(measured(module, folder, size, options.seed))
    show(scores, options.seed, Console(width=None if sys.stdout.isatty() else 160))
    return 0 if all(score.share >= GOAL for score in scores) else 1


if __name__ == "__main__":
    sys.exit(main())
