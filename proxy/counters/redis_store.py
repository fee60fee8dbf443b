"""The shared store in Redis, for any number of machines.

A budget consists of four Redis hashes: its sums (``spent`` and ``settled``), its open reservations
(``<amount> <holder>`` by request id), its settled reservations (the amount by request id), and the
leases (``<sum of the open amounts> <end>`` by holder). Slots are a hash of leases, a debt is a
text. Each change is one Lua script, so it is atomic. It uses the clock of Redis, because the clocks
of the machines may differ. A malformed value is deleted; a budget is rebuilt from the ledger.

In Redis Cluster, the budgets are in one slot, the limits of each team in another, and the texts in
a third, so that a script may use several of them.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import redis

from .redis_client import client_of
from .redis_scripts import (
    ADD,
    APPLY_POSTED,
    FORGET,
    MARK_POSTED,
    PEEK,
    PUBLISH,
    RELEASE,
    RENEW,
    SETTLE,
    SWAP,
    TAKE,
)
from .store import (
    BATCH,
    EXPIRE_S,
    LEASE_S,
    LIMITS,
    AppliedCosts,
    Change,
    Standing,
    Store,
    StoreUnavailable,
    Take,
    Taken,
    Texts,
    UsedChange,
    redis_errors_as_unavailable,
)

PARTS: Final = ("", ":open", ":settled", ":leases")
"""The suffixes of a counter's keys, in the order in which the scripts get them."""
BUDGET_EXPIRE_S: Final = 70 * 86_400  # longer than any period plus the delay of its last rows
COUNTERS: Final = 100
"""The maximum number of counters that one call reads, renews or deletes: it blocks other calls."""
SWAPS: Final = 50
STATE: Final = "bridge:{state}:"


class RedisStore(Store):
    """A ``Store`` and ``TextStore`` in Redis."""

    def __init__(
        self,
        url: str,
        timeout_s: float | None = None,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """``clock``: returns Unix seconds; None: the clock of Redis."""
        self.client = client_of(url, timeout_s)
        self._lease_s = lease_s
        self._clock = clock

    def take(self, request_id: str, holder: str, takes: Sequence[Take]) -> Taken:
        granted, unknown, values = self._run_values(TAKE, takes, holder, request_id)
        return Taken(
            granted=bool(granted),
            standings=tuple(Standing(*map(int, each)) for each in values),
            unknown=tuple(takes[index - 1].counter for index in unknown),
        )

    def add(self, holder: str, takes: Sequence[Take]) -> None:
        amounts = [value for each in takes for value in (each.kind, each.amount)]
        self._run(ADD, [each.counter for each in takes], holder, self._lease_s, EXPIRE_S, *amounts)

    def peek(self, takes: Sequence[Take]) -> list[Standing | None]:
        values = self._run_values(PEEK, takes) if takes else []
        return [Standing(*map(int, each)) if each else None for each in values]

    def _run_values(
        self, script: str, takes: Sequence[Take], holder: str = "", request_id: str = ""
    ) -> Any:
        arguments: list[object] = [holder, self._lease_s, request_id, BUDGET_EXPIRE_S, EXPIRE_S]
        for _, amount, limit, kind, floor in takes:
            arguments.append(f"{kind} {amount} {'-' if limit is None else limit} {floor}")
        return self._run(script, [each.counter for each in takes], *arguments)

    def settle(
        self, request_id: str, counters: Collection[str], cost: int
    ) -> dict[str, UsedChange]:
        names = [*counters]
        changes = self._run(SETTLE, names, request_id, cost, BUDGET_EXPIRE_S)
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
        return Standing(*map(int, self._run(PUBLISH, [counter], spent, BUDGET_EXPIRE_S)))

    def reserved_ids(self, counter: str) -> Iterator[list[str]]:
        for part in (":open", ":settled"):
            at = 0
            while True:
                at, found = self._scan(_keys(counter)[0] + part, at)
                if found:
                    yield found
                if not at:
                    break

    def standings(self, counters: Collection[str]) -> dict[str, Standing]:
        return {
            counter: standing
            for some in _batches(counters)
            for counter, standing in zip(
                some, self.peek([Take(counter, 0) for counter in some]), strict=True
            )
            if standing is not None
        }

    def renew(self, holder: str, held: Mapping[str, int | None]) -> None:
        of_slot: dict[str, list[str]] = defaultdict(list)
        for counter in held:
            of_slot[_tag(counter)].append(counter)
        for counters in of_slot.values():
            for some in _batches(counters):
                amounts = ["" if held[name] is None else held[name] for name in some]
                self._run(RENEW, some, holder, self._lease_s, EXPIRE_S, *amounts)

    def forget(self, counters: Collection[str]) -> None:
        for some in _batches(counters):
            self._run(FORGET, some)

    def update(self, names: Sequence[str], change: Change) -> Sequence[str]:
        keys = [STATE + name for name in names]
        with redis_errors_as_unavailable():
            swap = self.client.register_script(SWAP)
            for _ in range(SWAPS):
                old = cast("Texts", self.client.mget(keys))
                new = change(old)
                if swap(keys=keys, args=[*(text or "" for text in old), *new, EXPIRE_S]):
                    return new
        raise StoreUnavailable("too many concurrent writers")

    def read(self, names: Sequence[str]) -> Texts:
        with redis_errors_as_unavailable():
            return cast("Texts", self.client.mget([STATE + name for name in names]))

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
        keys = [key for counter in counters for key in _keys(counter)]
        clock = "" if self._clock is None else repr(self._clock())
        with redis_errors_as_unavailable():
            call = self.client.register_script(script)
            return call(keys=keys, args=[clock, *(str(each) for each in arguments)])


def _tag(counter: str) -> str:
    """Return the hash tag of a counter's keys: all keys of a script are in one slot."""
    return " ".join(counter.split(" ", 2)[:2]) if counter.startswith(LIMITS) else "budget"


def _keys(counter: str) -> list[str]:
    key = f"bridge:{{{_tag(counter)}}}:{counter}"
    return [key] if counter.startswith(LIMITS) else [key + part for part in PARTS]


def _batches(counters: Collection[str]) -> Iterator[Sequence[str]]:
    names = [*counters]
    for at in range(0, len(names), COUNTERS):
        yield names[at : at + COUNTERS]
