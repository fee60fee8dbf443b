"""Rate limit states in Redis, for any number of machines: each change is one Lua script.

The script does in Redis what ``LimitChange`` does in Python, so no process has to read a state and
write it back while others do the same. The names of the states are ``team TEAM`` and
``key TEAM/KEY``, for limits by model followed by `` for GLOB``. The team is the hash tag of the
keys, so that one script may use all states of a request in Redis Cluster.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

from .budget_store import redis_errors_as_unavailable
from .shared_state import EXPIRE_S, Texts

PREFIX: Final = "bridge:limit:"
SCRIPT: Final = """
local now, holder, lease_s = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local take, estimate, tokens = ARGV[4] == '1', tonumber(ARGV[5]), tonumber(ARGV[6])
local slots, held, expire_s = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]

local function split(text)  -- the version of a stored text and its JSON
  local version, json = string.match(text or '', '^(%d+):(.*)$')
  if not version or #version > 15 then return 0, '' end
  return tonumber(version), json
end
local function is_triple(value)
  if value == nil or value == cjson.null then return true end
  if type(value) ~= 'table' then return false end
  for i = 1, 3 do if type(value[i]) ~= 'number' then return false end end
  return value[1] == math.floor(value[1]) and value[4] == nil
end
local function decode(json)  -- a malformed text is an empty state
  local valid, found = pcall(cjson.decode, json)
  local state = {running = {}}
  if not valid or type(found) ~= 'table' or not is_triple(found.requests)
     or not is_triple(found.tokens) then return state end
  for who, slot in pairs(found.running or {}) do
    assert(type(slot[1]) == 'number')
    if slot[2] > now then state.running[who] = slot end
  end
  for _, kind in ipairs({'requests', 'tokens'}) do
    local bucket = found[kind]
    if bucket and bucket ~= cjson.null then
      state[kind] = {size = bucket[1], left = bucket[2], at = bucket[3]}
    end
  end
  return state
end
local function number(n) return string.format('%.17g', n) end
local function bucket_json(b)
  return b and '[' .. number(b.size) .. ',' .. number(b.left) .. ',' .. number(b.at) .. ']'
    or 'null'
end
local function encode(version, state)
  local running = {}
  for who, slot in pairs(state.running) do
    table.insert(running, cjson.encode(who) .. ':[' .. number(slot[1]) .. ',' ..
      number(slot[2]) .. ']')
  end
  return string.format('%.0f', version) .. ':{"requests":' .. bucket_json(state.requests) ..
    ',"tokens":' .. bucket_json(state.tokens) ..
    ',"running":{' .. table.concat(running, ',') .. '}}'
end
local function resized(bucket, size)
  if not size then return nil end
  if not bucket or bucket.size ~= size then return {size = size, left = size, at = now} end
  local left = bucket.left + (now - bucket.at) * size / 60
  return {size = size, left = math.min(size, left), at = now}
end

local versions, states, texts, granted = {}, {}, {}, true
for i, key in ipairs(KEYS) do
  local kind, stored = redis.call('TYPE', key).ok, nil
  if kind == 'string' then stored = redis.call('GET', key)
  elseif kind ~= 'none' then redis.call('DEL', key) end
  local rest = ARGV[9 + 4 * i]  -- what this machine counted while it could not reach Redis
  local text = (split(stored) > split(rest)) and stored or rest
  local version, json = split(text)
  local valid, state = pcall(decode, json)
  if not valid then state = {running = {}} end
  versions[i], states[i], texts[i] = version, state, text
  if take then
    local rpm, tpm = tonumber(ARGV[6 + 4 * i]), tonumber(ARGV[7 + 4 * i])
    local concurrency, running = tonumber(ARGV[8 + 4 * i]), 0
    state.requests, state.tokens = resized(state.requests, rpm), resized(state.tokens, tpm)
    for _, slot in pairs(state.running) do running = running + slot[1] end
    granted = granted and not (
      (concurrency and running >= concurrency)
      or (state.requests and state.requests.left < 1)
      or (state.tokens and state.tokens.left < math.min(estimate, state.tokens.size)))
  end
end
if not granted then return {0, texts} end
for i, key in ipairs(KEYS) do
  local state = states[i]
  if take and state.requests then state.requests.left = state.requests.left - 1 end
  if state.tokens then state.tokens.left = state.tokens.left + tokens end
  local count = held or ((state.running[holder] or {0})[1] + slots)
  state.running[holder] = count > 0 and {count, now + lease_s} or nil
  texts[i] = encode(versions[i] + 1, state)
  redis.call('SET', key, texts[i], 'EX', expire_s)
end
return {1, texts}
"""


class ScriptedChange(Protocol):
    """A change of rate limit states, as a function and as arguments of the script."""

    def __call__(self, texts: Texts) -> Sequence[str]:
        """Return the new texts without versions. Raises an error if the change is refused."""
        ...

    @property
    def arguments(self) -> Sequence[object]:
        """Return the script's arguments 1 to 8: see its first lines."""
        ...

    @property
    def limit_arguments(self) -> Sequence[Sequence[object]]:
        """Return three limits for each state.

        They are requests per minute, tokens per minute and concurrent requests. An empty string
        means that there is no limit.
        """
        ...


class RedisLimits:
    """Rate limit states in Redis; texts have versions, as in ``FailoverStates``."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def change(
        self, names: Sequence[str], change: ScriptedChange, local: Texts
    ) -> tuple[bool, list[str]]:
        """Apply the change to the newer of the stored and the ``local`` texts, in one script.

        Return True and the new texts, or False and the unchanged texts if a limit is reached.
        """
        arguments = [*change.arguments, EXPIRE_S]
        for limits, text in zip(change.limit_arguments, local, strict=True):
            arguments += [*limits, text or ""]
        with redis_errors_as_unavailable():
            script = self.client.register_script(SCRIPT)
            granted, texts = script(keys=[_key(name) for name in names], args=arguments)
        return bool(granted), texts

    def read(self, names: Sequence[str]) -> Texts:
        with redis_errors_as_unavailable():
            return cast("Texts", self.client.mget([_key(name) for name in names]))


def _key(name: str) -> str:
    team = name.split(" ")[1].partition("/")[0]
    return f"{PREFIX}{{{team}}}:{name}"
