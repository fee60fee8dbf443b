"""Select the shared stores of this process: Redis if it is configured, else local SQLite files."""

from functools import cache
from pathlib import Path
from typing import Final

from proxy.conf import conf

from .failover import FailoverStore
from .session_calls import CallStore, EncryptedCalls, RedisCalls, SqliteCalls
from .sqlite_store import SqliteStore

FILE: Final = "counters.sqlite3"
CALLS_FILE: Final = "calls.sqlite3"


@cache
def shared_store() -> SqliteStore | FailoverStore:
    """Return the store of budgets and limits."""
    local = SqliteStore(conf.data_dir / FILE)
    if not conf.redis_url:
        return local
    from .redis_store import RedisStore  # noqa: PLC0415 - most installations have no Redis

    return FailoverStore(RedisStore(conf.redis_url), local)


@cache
def call_store(directory: Path) -> CallStore:
    """Return the store of the sessions' tool calls: Redis, or a file in ``directory``."""
    if not conf.redis_url:
        return EncryptedCalls(SqliteCalls(directory / CALLS_FILE))
    from .redis_client import client_of  # noqa: PLC0415 - most installations have no Redis

    return EncryptedCalls(RedisCalls(client_of(conf.redis_url)))


def is_redis_unavailable() -> bool:
    """Return whether Redis is configured, but this machine currently uses its local store."""
    store = shared_store() if conf.redis_url else None
    return isinstance(store, FailoverStore) and store.degraded
