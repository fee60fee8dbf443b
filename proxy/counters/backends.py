"""Select the shared stores of this process: Redis if it is configured, else local SQLite files."""

from functools import cache
from pathlib import Path
from typing import Final

from proxy.conf import conf

from .budget_store import BudgetStore
from .budget_store_failover import FailoverBudgets
from .redis_limits import RedisLimits
from .session_calls import CallStore, EncryptedCalls, RedisCalls, SqliteCalls
from .shared_state import SqliteStates
from .shared_state_failover import FailoverStates, MemoryStates
from .sqlite_budgets import SqliteBudgets

FILE: Final = "counters.sqlite3"
LIMITS_FILE: Final = "limits.sqlite3"
CALLS_FILE: Final = "calls.sqlite3"


@cache
def budget_store() -> BudgetStore:
    local = SqliteBudgets(conf.data_dir / FILE)
    if not conf.redis_url:
        return local
    from .redis_budgets import RedisBudgets  # noqa: PLC0415 - most installations have no Redis

    return FailoverBudgets(RedisBudgets(conf.redis_url), local)


@cache
def limit_states() -> FailoverStates | SqliteStates | None:
    """Return the shared states of rate limits; None: a single process, which counts in memory."""
    local = SqliteStates(conf.data_dir / LIMITS_FILE) if conf.workers > 1 else None
    if not conf.redis_url:
        return local
    from .redis_client import client_of  # noqa: PLC0415 - most installations have no Redis

    return FailoverStates(RedisLimits(client_of(conf.redis_url)), local or MemoryStates())


@cache
def call_store(directory: Path) -> CallStore:
    """Return the store of the sessions' tool calls: Redis, or a file in ``directory``."""
    if not conf.redis_url:
        return EncryptedCalls(SqliteCalls(directory / CALLS_FILE))
    from .redis_client import client_of  # noqa: PLC0415 - most installations have no Redis

    return EncryptedCalls(RedisCalls(client_of(conf.redis_url)))


def is_redis_unavailable() -> bool:
    """Return whether Redis is configured, but this machine currently uses its local stores."""
    if not conf.redis_url:
        return False
    stores = (budget_store(), limit_states())
    return any(
        isinstance(store, FailoverBudgets | FailoverStates) and store.degraded for store in stores
    )
