"""Budget counters in Redis, shared by any number of machines.

A counter is one Redis hash: the field ``spent``, and a field ``h:<id>`` for each reservation with
the text ``<amount> <expires> <holder>``; ``expires`` 0 means settled. Each change is one Lua
script, so it is atomic. It uses the clock of Redis, because the clocks of the machines may differ.
A malformed value is deleted, and the counter is rebuilt from the ledger.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from proxy.conf import conf

from .budget_store import (
    LEASE_S,
    BudgetLimit,
    ReservationResult,
    Standing,
    StoreUnavailable,
    redis_errors_as_unavailable,
)

PREFIX: Final = "bridge:budget:"
EXPIRE_S: Final = 70 * 86_400  # longer than any period plus the delay of its last ledger rows

COMMON: Final = """
local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1000000
end
local function read_hash(key)  -- the hash as a table, or nil; a malformed value is deleted
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then return nil end
  if kind ~= 'hash' then redis.call('DEL', key) return nil end
  local flat, found = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  if not string.match(found['spent'] or '', '^%-?%d+$') then
    redis.call('DEL', key)
    return nil
  end
  return found
end
local function standing(key, now)
  local found = read_hash(key)
  if not found then return nil end
  local settled, reserved = 0, 0
  for field, text in pairs(found) do
    if string.sub(field, 1, 2) == 'h:' then
      local amount, expires = string.match(text, '^(%-?%d+) (%d+%.?%d*) ')
      if not amount then redis.call('HDEL', key, field)
      elseif tonumber(expires) == 0 then settled = settled + tonumber(amount)
      elseif tonumber(expires) > now then reserved = reserved + tonumber(amount) end
    end
  end
  return {tonumber(found['spent']), settled, reserved}
end
local function whole(n) return string.format('%.0f', n) end
"""
RESERVE: Final = (
    COMMON
    + """
local id, holder, amount, lease, now = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], clock()
local unknown, full = {}, {}
for i, key in ipairs(KEYS) do
  local s, limit = standing(key, now), ARGV[4 + i]
  if not s then table.insert(unknown, i)
  elseif limit ~= '' and amount > 0 and s[1] + s[2] + s[3] + amount > tonumber(limit) then
    table.insert(full, {i, whole(s[1]), whole(s[2]), whole(s[3])})
  end
end
if #unknown == 0 and #full == 0 then
  local text = whole(amount) .. ' ' .. string.format('%.3f', now + tonumber(lease)) .. ' ' .. holder
  for _, key in ipairs(KEYS) do redis.call('HSET', key, 'h:' .. id, text) end
end
if #unknown > 0 then full = {} end
return {unknown, full}
"""
)
SETTLE: Final = """
for _, key in ipairs(KEYS) do
  if redis.call('HEXISTS', key, 'h:' .. ARGV[1]) == 1 then
    redis.call('HSET', key, 'h:' .. ARGV[1], ARGV[2] .. ' 0 -')
  end
end
"""
RELEASE: Final = "for _, key in ipairs(KEYS) do redis.call('HDEL', key, 'h:' .. ARGV[1]) end"
APPLY_POSTED: Final = """
local missing = {}
for i = 1, #ARGV, 2 do
  if redis.call('HDEL', KEYS[1], 'h:' .. ARGV[i]) == 1 then
    redis.call('HINCRBY', KEYS[1], 'spent', ARGV[i + 1])
  else table.insert(missing, ARGV[i]) end
end
return missing
"""
PUBLISH: Final = (
    COMMON
    + """
read_hash(KEYS[1])  -- deletes a malformed value
redis.call('HSET', KEYS[1], 'spent', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
for i = 3, #ARGV do redis.call('HDEL', KEYS[1], 'h:' .. ARGV[i]) end
local now, flat = clock(), redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do
  local expires = string.match(flat[i + 1], '^%-?%d+ (%d+%.?%d*) ')
  if expires and tonumber(expires) ~= 0 and tonumber(expires) <= now then
    redis.call('HDEL', KEYS[1], flat[i])
  end
end
"""
)
STANDING: Final = (
    COMMON
    + """
local s = standing(KEYS[1], clock())
if not s then return false end
return {whole(s[1]), whole(s[2]), whole(s[3])}
"""
)
RENEW: Final = (
    COMMON
    + """
local until_ = string.format('%.3f', clock() + tonumber(ARGV[2]))
for _, key in ipairs(KEYS) do
  for field, text in pairs(read_hash(key) or {}) do
    local amount, expires, holder = string.match(text, '^(%-?%d+) (%d+%.?%d*) (.*)$')
    if amount and holder == ARGV[1] and tonumber(expires) ~= 0 then
      redis.call('HSET', key, field, amount .. ' ' .. until_ .. ' ' .. holder)
    end
  end
end
"""
)


def client_of(url: str, timeout_s: float | None = None) -> "redis.Redis":
    """Return a Redis client. ``timeout_s``: limit of each call; None: ``conf.redis_timeout_s``."""
    timeout_s = conf.redis_timeout_s if timeout_s is None else timeout_s
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        decode_responses=True,
        health_check_interval=30,
        retry=Retry(NoBackoff(), 0),  # no retries: the caller uses its local store instead
    )


class RedisBudgets:
    """A ``BudgetStore`` in Redis."""

    def __init__(self, url: str, timeout_s: float | None = None) -> None:
        self._redis = client_of(url, timeout_s)

    def reserve(
        self, request_id: str, holder: str, amount: int, limits: Sequence[BudgetLimit]
    ) -> ReservationResult:
        limit_texts = ["" if each.limit is None else str(each.limit) for each in limits]
        names = [each.counter for each in limits]
        unknown, full = self._run(
            RESERVE, names, request_id, holder, str(amount), str(LEASE_S), *limit_texts
        )
        return ReservationResult(
            unknown=tuple(names[index - 1] for index in unknown),
            full=tuple((names[index - 1], Standing(*map(int, values))) for index, *values in full),
        )

    def settle(self, request_id: str, counters: Collection[str], cost: int) -> None:
        self._run(SETTLE, counters, request_id, str(cost))

    def release(self, request_id: str, counters: Collection[str]) -> None:
        self._run(RELEASE, counters, request_id)

    def apply_posted(self, counter: str, costs: Mapping[str, int]) -> set[str]:
        flat = [text for request_id, cost in costs.items() for text in (request_id, str(cost))]
        return set(self._run(APPLY_POSTED, [counter], *flat))

    def publish(self, counter: str, spent: int, posted: Collection[str] = ()) -> None:
        self._run(PUBLISH, [counter], str(spent), str(EXPIRE_S), *posted)

    def reserved_ids(self, counter: str) -> list[str]:
        try:
            fields = cast("list[str]", self._redis.hkeys(PREFIX + counter))
        except redis.ResponseError:
            return []  # the value is malformed; the next ``publish`` deletes it
        except redis.RedisError as exc:
            raise StoreUnavailable(str(exc)) from exc
        return [field[2:] for field in fields if field.startswith("h:")]

    def standing(self, counter: str) -> Standing | None:
        values = self._run(STANDING, [counter])
        return Standing(*map(int, values)) if values else None

    def renew(self, holder: str, counters: Collection[str]) -> None:
        self._run(RENEW, counters, holder, str(LEASE_S))

    def forget(self, counters: Collection[str]) -> None:
        self._run("for _, key in ipairs(KEYS) do redis.call('DEL', key) end", counters)

    def close(self) -> None:
        self._redis.close()

    def _run(self, script: str, counters: Collection[str], *arguments: str) -> Any:
        keys = [PREFIX + counter for counter in counters]
        with redis_errors_as_unavailable():
            return self._redis.register_script(script)(keys=keys, args=list(arguments))
