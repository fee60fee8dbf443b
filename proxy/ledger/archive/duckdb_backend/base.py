"""A read-only Django database backend for DuckDB, which queries the Parquet files of the archive.

DuckDB's SQL is nearly that of PostgreSQL, so this backend generates Django's SQL for PostgreSQL,
with the differences below. Its only table is the table of ``Exchange``, a view of the files that
``read_files`` names. Each query on ledger rows therefore works on the archive too, with
``using("archive")``.

``duckdb`` is an optional package, so it is imported when the first archived file is read.
"""

import atexit
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final

from django.apps import apps
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.client import BaseDatabaseClient
from django.db.backends.base.creation import BaseDatabaseCreation
from django.db.backends.base.features import BaseDatabaseFeatures
from django.db.backends.base.introspection import BaseDatabaseIntrospection
from django.db.backends.postgresql.base import DatabaseWrapper as PostgresqlWrapper
from django.db.backends.postgresql.operations import DatabaseOperations as PostgresqlOperations
from django.db.models.fields.json import HasKey, KeyTextTransform, KeyTransform

from . import ArchivedFile, load_duckdb, quote

TABLE: Final = "proxy_exchange"
THREADS: Final = 2
"""More threads would compete with the streams of the gateway's process."""
MEMORY_LIMIT: Final = "512MB"
PAGE_ROWS: Final = 1001
"""For a page of at most so many rows, DuckDB sorts the keys first, and then reads only these rows.
Otherwise it would need more than ``MEMORY_LIMIT`` for a page of 2.5 million rows."""
PREFIXES: Final = ("contains", "startswith", "endswith", "icontains", "istartswith", "iendswith")


@lru_cache
def duckdb_instance() -> Any:
    """Return the process's DuckDB instance, which is in memory and downloads no extensions."""
    temporary = tempfile.mkdtemp(prefix="bridge-archive-")  # for sorts that exceed the memory
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    config = {
        "threads": THREADS,
        "memory_limit": MEMORY_LIMIT,
        "temp_directory": temporary,
        "late_materialization_max_rows": PAGE_ROWS,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    instance = load_duckdb().connect(":memory:", config=config)
    instance.execute("SET parquet_metadata_cache = true")
    instance.execute("SET GLOBAL TimeZone = 'UTC'")  # the default is the zone of the host
    return instance


def view_of(files: Sequence[ArchivedFile], cursor: Any) -> str:
    """Return the SQL of a query of all rows of the files. Paths and ids are quoted."""
    whole: dict[str, list[str]] = {}
    queries = []
    for file in files:
        columns = f"SELECT *{_later_columns(file.path, cursor)} FROM"
        if file.last_id is None:
            whole.setdefault(columns, []).append(quote(file.path))
        else:
            queries.append(
                f"{columns} read_parquet({quote(file.path)}) WHERE id <= {quote(file.last_id)}"
            )
    queries += [f"{columns} read_parquet([{', '.join(paths)}])" for columns, paths in whole.items()]
    return " UNION ALL BY NAME ".join(queries)


def _later_columns(path: str, cursor: Any) -> str:
    """Return the columns that an older version's file lacks, with the values of new rows."""
    table = apps.get_model("proxy", "Exchange")._meta  # noqa: SLF001 -- Django's documented model API
    cursor.execute(f"SELECT name FROM parquet_schema({quote(path)})")  # noqa: S608 -- quoted  # nosec B608
    stored = {name for (name,) in cursor.fetchall()}
    added = ""
    for field in table.concrete_fields:
        if field.attname not in stored:
            value = field.get_default()
            text = json.dumps(value) if field.get_internal_type() == "JSONField" else value
            added += f', {"NULL" if text is None else quote(str(text))} AS "{field.attname}"'
    return added


class Cursor:
    """A cursor of DuckDB that accepts Django's ``%s`` placeholders."""

    def __init__(self, cursor: Any) -> None:
        self.cursor = cursor

    def execute(self, sql: str, params: Sequence[Any] | None = None) -> None:
        if params is not None:  # otherwise Django has not doubled the percent signs
            sql = sql % tuple("?" for _ in params)
        self.cursor.execute(sql, params or [])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cursor, name)

    def __iter__(self) -> Iterator[Any]:
        while rows := self.cursor.fetchmany(1000):
            yield from rows


class Features(BaseDatabaseFeatures):
    allows_group_by_select_index = True
    has_bulk_insert = False
    has_native_json_field = True
    has_real_datatype = True
    nulls_order_largest = True
    supports_aggregate_filter_clause = True
    supports_json_field = True
    supports_over_clause = True
    supports_transactions = True  # nothing is written, so there is nothing to roll back
    uses_savepoints = False


class Operations(PostgresqlOperations):
    def adapt_integerfield_value(self, value: Any, internal_type: str) -> Any:
        return value

    def adapt_datetimefield_value(self, value: Any) -> Any:
        """Return the time without its zone, because the files contain UTC without a zone."""
        return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) else value

    def adapt_ipaddressfield_value(self, value: Any) -> Any:
        return value or None

    def adapt_json_value(self, value: Any, encoder: Any) -> str:
        return json.dumps(value, cls=encoder)

    def lookup_cast(self, lookup_type: str, internal_type: str | None = None) -> str:
        if internal_type == "GenericIPAddressField":
            internal_type = None  # an address is text in the files
        return super().lookup_cast(lookup_type, internal_type)

    def get_db_converters(self, expression: Any) -> list[Any]:
        converters = super().get_db_converters(expression)
        if expression.output_field.get_internal_type() == "DateTimeField":
            converters.append(_with_utc)
        return converters

    def last_executed_query(self, cursor: Any, sql: str, params: Any) -> str:
        return sql


def _with_utc(value: datetime | None, expression: Any, connection: Any) -> datetime | None:
    return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


class Creation(BaseDatabaseCreation):
    """Tests need no separate database: the files are the data."""

    def create_test_db(self, *args: Any, **options: Any) -> str:
        return str(self.connection.settings_dict["NAME"])

    def destroy_test_db(self, *args: Any, **options: Any) -> None:
        pass


class Introspection(BaseDatabaseIntrospection):
    def get_table_list(self, cursor: Any) -> list[Any]:
        return []  # so that no command tries to empty or migrate tables


class DatabaseWrapper(BaseDatabaseWrapper):
    """A connection to the archive; it is read-only and has no transactions."""

    vendor = "duckdb"
    display_name = "DuckDB"
    data_types = PostgresqlWrapper.data_types | {
        "GenericIPAddressField": "varchar",
        "JSONField": "varchar",
    }
    # DuckDB's LIKE has no escape character unless the query names one.
    operators = PostgresqlWrapper.operators | {
        name: rf"{PostgresqlWrapper.operators[name]} ESCAPE '\'" for name in PREFIXES
    }
    pattern_esc = PostgresqlWrapper.pattern_esc
    pattern_ops = PostgresqlWrapper.pattern_ops
    client_class = BaseDatabaseClient
    creation_class = Creation
    features_class = Features
    introspection_class = Introspection
    ops_class = Operations

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._files: Sequence[ArchivedFile] = ()
        self._cursors: list[Any] = []

    @property
    def Database(self) -> SimpleNamespace:  # noqa: N802 -- Django's name for the driver's module
        """The exceptions of the driver. DuckDB has no InterfaceError."""
        duckdb = load_duckdb()
        return SimpleNamespace(**{"InterfaceError": duckdb.Error, **vars(duckdb)})

    def read_files(self, files: Sequence[ArchivedFile]) -> None:
        """Let the queries that follow on this connection read these files."""
        self._files = files

    def interrupt(self) -> None:
        """Stop the queries of this connection; another thread may call this."""
        for cursor in list(self._cursors):
            cursor.interrupt()

    def create_cursor(self, name: str | None = None) -> Cursor:
        cursor = self.connection.cursor()
        if self._files:
            cursor.execute(f"CREATE TEMP VIEW {TABLE} AS {view_of(self._files, cursor)}")
        self._cursors = [cursor]
        return Cursor(cursor)

    def get_connection_params(self) -> dict[str, Any]:
        return {}

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        return duckdb_instance().cursor()

    def init_connection_state(self) -> None:
        """Skip the check of the database's version."""

    def is_usable(self) -> bool:
        return True

    def _set_autocommit(self, autocommit: bool) -> None:
        pass

    def _commit(self) -> None:
        pass

    def _rollback(self) -> None:
        pass

    def _close(self) -> None:
        self._cursors = []
        if self.connection is not None:
            self.connection.close()


def _pointer(keys: Sequence[str]) -> str:
    """Return the JSON pointer (RFC 6901) of a value; unlike a path, it can contain any key."""
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)


def _key_sql(function: str) -> Any:
    def as_duckdb(self: KeyTransform, compiler: Any, connection: Any) -> tuple[str, Any]:
        sql, params, keys = self.preprocess_lhs(compiler, connection)
        return f"{function}({sql}, %s)", (*params, _pointer(keys))

    return as_duckdb


def _has_key_sql(self: HasKey, compiler: Any, connection: Any) -> tuple[str, Any]:
    sql, params = self.process_lhs(compiler, connection)
    return f"json_exists({sql}, %s)", (*params, _pointer([self.rhs]))


# Django calls as_<vendor>() of a lookup or a transform if it exists.
setattr(KeyTransform, "as_duckdb", _key_sql("json_extract"))  # noqa: B010 -- unknown to the stubs
setattr(KeyTextTransform, "as_duckdb", _key_sql("json_extract_string"))  # noqa: B010 -- the same
setattr(HasKey, "as_duckdb", _has_key_sql)  # noqa: B010 -- the same
