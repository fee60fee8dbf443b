"""The store that this process uses: Redis when there is one, else a file in the data directory."""

from functools import cache
from pathlib import Path
from typing import Final

from proxy.conf import conf

from .failover import FailoverBudgets
from .failover_states import FailoverStates, MemoryStates
from .replies import RedisReplies, Replies, ReplyFile, SharedReplies
from .sqlite_store import SqliteBudgets
from .states import RedisStates, SqliteStates, States
from .store import BudgetStore

FILE: Final = "counters.sqlite3"
LIMITS_FILE: Final = "limits.sqlite3"
REPLIES_FILE: Final = "replies.sqlite3"


@cache
def budget_store() -> BudgetStore:
    local = SqliteBudgets(conf.data_dir / FILE)
    if not conf.redis_url:
        return local
    from .redis_store import RedisBudgets  # noqa: PLC0415 - most installations have no Redis

    return FailoverBudgets(RedisBudgets(conf.redis_url), local)


@cache
def limit_states() -> States | None:
    """None: this process is alone, and counts in its own memory."""
    several = SqliteStates(conf.data_dir / LIMITS_FILE) if conf.workers > 1 else None
    if not conf.redis_url:
        return several
    from .redis_store import client_of  # noqa: PLC0415 - most installations have no Redis

    return FailoverStates(RedisStates(client_of(conf.redis_url)), several or MemoryStates())


@cache
def replies_in(directory: Path) -> Replies:
    """Where answers to an ``idempotency-key`` are kept; ``directory`` is the spool's."""
    local = ReplyFile(directory / REPLIES_FILE)
    if not conf.redis_url:
        return local
    from .redis_store import client_of  # noqa: PLC0415 - most installations have no Redis

    return SharedReplies(RedisReplies(client_of(conf.redis_url)), local)


def is_redis_away() -> bool:
    """Whether this machine counts for itself at the moment, although there should be a Redis."""
    if not conf.redis_url:
        return False
    stores = (budget_store(), limit_states())
    return any(isinstance(one, FailoverBudgets | FailoverStates) and one.degraded for one in stores)
