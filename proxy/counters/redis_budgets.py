"""Budget counters in Redis, shared by any number of machines.

A counter consists of four Redis hashes: its sums (``spent`` and ``settled``), its open reservations
(``<amount> <holder>`` by request id), its settled reservations (the amount by request id), and the
leases (``<sum of the open amounts> <end>`` by holder). Each change is one Lua script, so it is
atomic. It uses the clock of Redis, because the clocks of the machines may differ. A malformed value
is deleted, and the counter is rebuilt from the ledger.

All keys have the hash tag ``{budget}``, so that a script may use several counters in Redis Cluster.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import redis

from .budget_scripts import (
    APPLY_POSTED,
    FORGET,
    MARK_POSTED,
    PUBLISH,
    RELEASE,
    RENEW,
    RESERVE,
    SETTLE,
    STANDINGS,
)
from .budget_store import (
    BATCH,
    LEASE_S,
    AppliedCosts,
    BudgetLimit,
    ReservationResult,
    Standing,
    StoreUnavailable,
    UsedChange,
    redis_errors_as_unavailable,
)
from .redis_client import client_of

PREFIX: Final = "bridge:{budget}:"
PARTS: Final = ("", ":open", ":settled", ":leases")
"""The suffixes of a counter's keys, in the order in which the scripts get them."""
EXPIRE_S: Final = 70 * 86_400  # longer than any period plus the delay of its last ledger rows
COUNTERS: Final = 100
"""The maximum number of counters that one call reads, renews or deletes: it blocks other calls."""


class RedisBudgets:
    """A ``BudgetStore`` in Redis."""

    def __init__(self, url: str, timeout_s: float | None = None, lease_s: float = LEASE_S) -> None:
        self.client = client_of(url, timeout_s)
        self._lease_s = lease_s

    def reserve(
        self, request_id: str, holder: str, amount: int, limits: Sequence[BudgetLimit]
    ) -> ReservationResult:
        limit_texts = ["" if each.limit is None else str(each.limit) for each in limits]
        names = [each.counter for each in limits]
        unknown, full = self._run(
            RESERVE, names, request_id, holder, amount, self._lease_s, EXPIRE_S, *limit_texts
        )
        return ReservationResult(
            unknown=tuple(names[index - 1] for index in unknown),
            full=tuple((names[index - 1], Standing(*map(int, values))) for index, *values in full),
        )

    def settle(
        self, request_id: str, counters: Collection[str], cost: int
    ) -> dict[str, UsedChange]:
        names = [*counters]
        changes = self._run(SETTLE, names, request_id, cost, EXPIRE_S)
        return {
            names[index - 1]: UsedChange(int(before), int(after))
            for index, before, after in changes
        }

    def release(self, request_id: str, counters: Collection[str]) -> None:
        self._run(RELEASE, counters, request_id)

    def apply_posted(self, counter: str, costs: Mapping[str, int]) -> AppliedCosts:
        flat = [value for pair in costs.items() for value in pair]
        missing, used = self._run(APPLY_POSTED, [counter], *flat)
        return AppliedCosts(frozenset(missing), UsedChange(*map(int, used)) if used else None)

    def mark_posted(self, counter: str, request_ids: Collection[str]) -> None:
        self._run(MARK_POSTED, [counter], *request_ids)

    def publish(self, counter: str, spent: int) -> Standing:
        return Standing(*map(int, self._run(PUBLISH, [counter], spent, EXPIRE_S)))

    def reserved_ids(self, counter: str) -> Iterator[list[str]]:
        for part in (":open", ":settled"):
            at = 0
            while True:
                at, found = self._scan(PREFIX + counter + part, at)
                if found:
                    yield found
                if not at:
                    break

    def standing(self, counter: str) -> Standing | None:
        return self.standings([counter]).get(counter)

    def standings(self, counters: Collection[str]) -> dict[str, Standing]:
        return {
            counter: Standing(*map(int, values))
            for some in _batches(counters)
            for counter, values in zip(some, self._run(STANDINGS, some), strict=True)
            if values
        }

    def renew(self, holder: str, counters: Collection[str]) -> None:
        for some in _batches(counters):
            self._run(RENEW, some, holder, self._lease_s)

    def forget(self, counters: Collection[str]) -> None:
        for some in _batches(counters):
            self._run(FORGET, some)

    def close(self) -> None:
        self.client.close()

    def _scan(self, key: str, at: int) -> tuple[int, list[str]]:
        try:
            following, found = cast("Any", self.client.hscan(key, at, count=BATCH))
        except redis.ResponseError:
            return 0, []  # the value is malformed; the next script deletes it
        except redis.RedisError as exc:
            raise StoreUnavailable(str(exc)) from exc
        return following, [*found]

    def _run(self, script: str, counters: Collection[str], *arguments: object) -> Any:
        keys = [PREFIX + counter + part for counter in counters for part in PARTS]
        with redis_errors_as_unavailable():
            call = self.client.register_script(script)
            return call(keys=keys, args=[str(each) for each in arguments])


def _batches(counters: Collection[str]) -> Iterator[Sequence[str]]:
    names = [*counters]
    for at in range(0, len(names), COUNTERS):
        yield names[at : at + COUNTERS]
