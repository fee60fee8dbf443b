"""What the archive needs of DuckDB without Django's backend, whose import takes psycopg with it."""

import importlib
from types import ModuleType
from typing import NamedTuple

from proxy.secrets import ConfigError


class ArchivedFile(NamedTuple):
    """A Parquet file of ledger rows, of which the rows up to ``last_id`` are read; None: all."""

    path: str
    last_id: str | None = None


def load_duckdb() -> ModuleType:
    """Import DuckDB. Raise ConfigError with the command that installs it."""
    try:
        return importlib.import_module("duckdb")
    except ImportError:
        raise ConfigError(
            "archived months need DuckDB: pip install 'messages-bridge[archive]'"
        ) from None


def quote(text: str) -> str:
    """Return the text as a SQL literal; DuckDB has no escapes in such a literal."""
    return "'" + text.replace("'", "''") + "'"
