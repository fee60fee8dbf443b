"""Read the ledger of a running gateway, on SQLite or PostgreSQL, without code of the product."""

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg

JSON_COLUMNS = ("attempts", "notes", "unknown_events", "tool_names")
Row = dict[str, Any]


class LedgerDatabase(Protocol):
    """``select`` with ``?`` for each value; a row is a dict by column."""

    def select(self, query: str, *values: Any) -> list[Row]: ...


@dataclass(frozen=True)
class SqliteLedger:
    path: Path

    def select(self, query: str, *values: Any) -> list[Row]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as connection:
            connection.row_factory = sqlite3.Row
            return [_plain(dict(row)) for row in connection.execute(query, values)]


@dataclass(frozen=True)
class PostgresLedger:
    url: str

    def select(self, query: str, *values: Any) -> list[Row]:
        with self._connect() as connection:
            cursor = connection.execute(query.replace("?", "%s"), values)
            names = [column.name for column in cursor.description or ()]
            return [_plain(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            yield connection


def _plain(row: Row) -> Row:
    for name in JSON_COLUMNS:
        if isinstance(row.get(name), str):
            row[name] = json.loads(row[name])
    return row


@dataclass(frozen=True)
class Ledger:
    """Queries on the ledger for tests."""

    database: LedgerDatabase

    def row(self, request_id: str, *, within_s: float = 60) -> Row:
        """Wait for the closed row of a request; return it, with the name of its key."""
        deadline = time.monotonic() + within_s
        while True:
            found = self.database.select(
                "SELECT proxy_exchange.*, proxy_apikey.name AS used_key FROM proxy_exchange "
                "LEFT JOIN proxy_apikey ON proxy_apikey.id = key_id "
                "WHERE proxy_exchange.id = ? AND state = 'closed'",
                request_id,
            )
            if found:
                return found[0]
            assert time.monotonic() < deadline, f"{request_id} has no closed row"
            time.sleep(0.01)

    def rows_of(self, model: str) -> list[Row]:
        return self.database.select(
            "SELECT * FROM proxy_exchange WHERE model_requested = ? ORDER BY id", model
        )

    def open_rows(self) -> list[Row]:
        return self.database.select("SELECT * FROM proxy_exchange WHERE state <> 'closed'")

    def ids_since(self, newest: str) -> list[str]:
        found = self.database.select(
            "SELECT id FROM proxy_exchange WHERE id > ? ORDER BY id", newest
        )
        return [row["id"] for row in found]

    def newest(self) -> str:
        found = self.database.select("SELECT max(id) AS id FROM proxy_exchange")
        return found[0]["id"] or ""
