"""A folder has at most 15 files and folders, so that a reader finds a feature in its list.

Python files except ``__init__.py`` are counted, pages of Markdown, and folders.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[3]
ROOTS: Final = ("benchmarks", "bridge_project", "docs", "proxy", "tests", "translator")
MAXIMUM: Final = 15
SUFFIXES: Final = {".py", ".md"}

EXCEPTIONS: Final = {
    "proxy": (38, "a Django app contains its modules, its packages, and folders named by Django"),
    "proxy/management/commands": (22, "Django finds commands only directly in this folder"),
    "docs/decisions": (999, "one page for each decision"),
    "tests/cases/openai_chat": (999, "one folder for each recorded case"),
    "tests/cases/openai_responses": (999, "one folder for each recorded case"),
}
"""Folder -> the maximum for it, and the reason."""


def folders() -> Iterator[Path]:
    for root in ROOTS:
        yield REPOSITORY / root
        yield from (path for path in sorted((REPOSITORY / root).rglob("*")) if path.is_dir())


def siblings(folder: Path) -> list[str]:
    """Return the names that count; a folder counts if it contains more than caches."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if (
            path.is_dir() and any(one.is_file() and one.suffix != ".pyc" for one in path.rglob("*"))
        )
        or (path.suffix in SUFFIXES and path.name != "__init__.py")
    )


def test_no_folder_has_more_files_and_folders_than_its_maximum():
    counts = {str(path.relative_to(REPOSITORY)): len(siblings(path)) for path in folders()}
    maxima = {name: maximum for name, (maximum, _reason) in EXCEPTIONS.items()}

    over = {name: count for name, count in counts.items() if count > maxima.get(name, MAXIMUM)}

    assert len(counts) > 100
    assert over == {}
    assert {name for name in EXCEPTIONS if counts[name] <= MAXIMUM} == set(), "not needed any more"


def test_caches_packages_and_data_files_are_not_counted(tmp_path):
    for name in ("__init__.py", "one.py", "two.md", "data.json", "sub/three.py", "old/three.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    assert siblings(tmp_path) == ["one.py", "sub", "two.md"]
