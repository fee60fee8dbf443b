"""List the benchmarks; each is a module with its own options.

python -m benchmarks
python -m benchmarks.ledger.drain --help
"""

import argparse
import ast
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Run one of the benchmarks; --help after its name shows its options.",
        epilog="\n".join(f"  python -m {name:34}{text}" for name, text in benchmarks()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    parser.print_help()


def benchmarks() -> list[tuple[str, str]]:
    """Return module and first sentence of each benchmark: the modules that have a ``main``."""
    found = []
    for path in sorted(FOLDER.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        is_program = any(
            isinstance(one, ast.FunctionDef) and one.name == "main" for one in tree.body
        )
        if is_program and path != Path(__file__):
            parts = path.relative_to(FOLDER.parent).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__main__")
            found.append((name, (ast.get_docstring(tree) or "").partition("\n")[0]))
    return found


if __name__ == "__main__":
    main()
