"""Draw the import layers: ``python docs/generate`` writes layers.svg; ``--check`` only compares.

Each folder is a box that imports only boxes below it. The imports are read from the source, those
inside functions too. A module beside the folders has no box, but imports through it count. A cycle
between folders is an error.
"""

import ast
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from layer_drawing import Graph, draw

REPOSITORY: Final = Path(__file__).parents[2]
PICTURE: Final = REPOSITORY / "docs/images/layers.svg"
PACKAGES: Final = ("proxy", "translator")
"""From the top of the picture to its bottom; a package imports only those below it."""
OPENED: Final = ("proxy", "proxy.gateway", "proxy.ledger", "translator")
"""The packages whose folders are boxes of their own."""


class LayerError(Exception):
    """The folders have no layers."""


def module_names() -> dict[str, Path]:
    """Return the dotted name and the file of each module."""
    found = {}
    for package in PACKAGES:
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            parts = path.relative_to(REPOSITORY).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def module_imports(modules: Mapping[str, Path]) -> Graph:
    """Return the modules that each module imports."""
    graph: Graph = {}
    for name, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found = {one for node in ast.walk(tree) for one in _imported(node, package, modules)}
        graph[name] = found - {name}
    return graph


def _imported(node: ast.AST, package: str, modules: Collection[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = package.split(".")
            base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
        for alias in node.names:
            name = f"{base}.{alias.name}"
            if name in modules:
                yield name
            elif base in modules:
                yield base


def folder_of(module: str, packages: Collection[str], opened: Collection[str] = OPENED) -> str:
    """Return the box of a module; a module directly in an opened package is returned itself.

    ``packages``: the modules that are packages.
    """
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        if name in packages and name not in opened:
            return name
    return module


def folder_imports(
    imports: Graph, packages: Collection[str], opened: Collection[str] = OPENED
) -> Graph:
    """Return the folders that each folder imports, directly or through modules without a box.

    Raises LayerError for a cycle.
    """
    unit = {name: folder_of(name, packages, opened) for name in imports}
    graph: Graph = {name: set() for name in unit.values()}
    for name, targets in imports.items():
        graph[unit[name]] |= {unit[target] for target in targets} - {unit[name]}
    rows_of(graph)  # raises for a cycle through a module beside the folders too
    boxes = {name for name in graph if name in packages and name not in opened}
    return {box: _next_boxes(box, graph, boxes) for box in sorted(boxes)}


def _next_boxes(box: str, graph: Graph, boxes: Collection[str]) -> set[str]:
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [*graph[box]]
    while waiting:
        name = waiting.pop()
        if name in boxes:
            found.add(name)
        elif name not in seen:
            seen.add(name)
            waiting += graph[name]
    return found


def rows_of(graph: Graph) -> dict[str, int]:
    """Return the row of each box: the longest path below it. Raises LayerError for a cycle."""
    rows: dict[str, int] = {}
    path: list[str] = []

    def visit(name: str) -> int:
        if name in path:
            cycle = [*path[path.index(name) :], name]
            raise LayerError(f"import cycle between folders: {' -> '.join(cycle)}")
        if name not in rows:
            path.append(name)
            rows[name] = max((visit(target) + 1 for target in sorted(graph[name])), default=0)
            path.pop()
        return rows[name]

    for name in graph:
        visit(name)
    return rows


def transitive_reduction(graph: Graph) -> Graph:
    """Return the graph without the edges that a longer path implies."""
    below: dict[str, set[str]] = {}
    for name in sorted(graph, key=rows_of(graph).__getitem__):
        below[name] = graph[name].union(*(below[target] for target in graph[name]))
    return {
        name: {one for one in targets if not any(one in below[other] for other in targets)}
        for name, targets in graph.items()
    }


def stacked_rows(graph: Graph) -> dict[str, int]:
    """Return the row of each box, with all boxes of a package above those of the next one."""
    rows: dict[str, int] = {}
    lowest = 0
    for package in reversed(PACKAGES):
        own = {name for name in graph if name.split(".")[0] == package}
        ranks = rows_of({name: graph[name] & own for name in own})
        rows |= {name: lowest + rank for name, rank in ranks.items()}
        lowest += max(ranks.values(), default=-1) + 1
    wrong = [f"{a} -> {b}" for a in sorted(graph) for b in sorted(graph[a]) if rows[a] <= rows[b]]
    if wrong:
        raise LayerError(f"imports of a package above: {', '.join(wrong)}")
    return rows


def layers_svg() -> str:
    """Return the picture. Raises LayerError."""
    modules = module_names()
    packages = {name for name, path in modules.items() if path.name == "__init__.py"}
    graph = folder_imports(module_imports(modules), packages)
    return draw(stacked_rows(graph), transitive_reduction(graph), PACKAGES)


def write_layers(*, check: bool) -> int:
    """Write the picture, or only compare it; return 1 if it is out of date."""
    svg = layers_svg()
    if PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == svg:
        return 0
    if check:
        sys.stderr.write(f"{PICTURE.name} is out of date; run python docs/generate\n")
        return 1
    PICTURE.write_text(svg, encoding="utf-8")
    return 0
