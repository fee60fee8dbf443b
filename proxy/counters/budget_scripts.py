"""The Lua scripts of the budget counters in Redis; ``redis_budgets`` calls them.

KEYS has four keys for each counter: sums, open reservations, settled reservations, leases. Numbers
leave a script as text, because Redis would cut them to 64-bit integers without an error.
"""

from typing import Final

COMMON: Final = """
local NUMBER, OPEN, LEASE = '^%-?%d+$', '^(%-?%d+) (.*)$', '^(%-?%d+) (%d+%.?%d*)$'
local function whole(n) return string.format('%.0f', n) end
local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1000000
end
local function keys_of(i)
  return {sums = KEYS[4 * i - 3], open = KEYS[4 * i - 2], settled = KEYS[4 * i - 1],
          leases = KEYS[4 * i]}
end
-- Return the keys and the sums of a counter, or nil if it is unknown or malformed; then delete it.
local function load(i)
  local c, valid = keys_of(i), true
  for _, key in pairs(c) do
    local kind = redis.call('TYPE', key).ok
    valid = valid and (kind == 'hash' or kind == 'none')
  end
  local sums = valid and redis.call('HMGET', c.sums, 'spent', 'settled') or {}
  if not (string.match(sums[1] or '', NUMBER) and string.match(sums[2] or '', NUMBER)) then
    redis.call('DEL', c.sums, c.open, c.settled, c.leases)
    return nil
  end
  c.spent_sum, c.settled_sum = tonumber(sums[1]), tonumber(sums[2])
  return c
end
local function used(c) return c.spent_sum + c.settled_sum end
local function add(c, spent, settled)
  c.spent_sum, c.settled_sum = c.spent_sum + spent, c.settled_sum + settled
  redis.call('HSET', c.sums, 'spent', whole(c.spent_sum), 'settled', whole(c.settled_sum))
end
-- Return the open amounts of the holders whose lease has not ended.
local function reserved(c, now)
  local flat, total = redis.call('HGETALL', c.leases), 0
  for i = 1, #flat, 2 do
    local sum, ends = string.match(flat[i + 1], LEASE)
    if not sum then redis.call('HDEL', c.leases, flat[i])
    elseif tonumber(ends) > now then total = total + tonumber(sum) end
  end
  return total
end
-- Add to the open amounts of a holder. ``ends`` nil: the end of the lease stays.
local function add_open(c, holder, amount, ends)
  local sum, old_end = string.match(redis.call('HGET', c.leases, holder) or '', LEASE)
  if sum or ends then
    ends = math.max(ends or 0, tonumber(old_end or 0))
    redis.call('HSET', c.leases, holder,
      whole((sum or 0) + amount) .. ' ' .. string.format('%.3f', ends))
  end
end
-- Delete the reservation of a request and subtract its amount; return the amount, or nil.
local function remove(c, id)
  local text = redis.call('HGET', c.open, id)
  if text then
    redis.call('HDEL', c.open, id)
    local amount, holder = string.match(text, OPEN)
    if amount then add_open(c, holder, -tonumber(amount)) end
    return tonumber(amount)
  end
  local amount = redis.call('HGET', c.settled, id)
  if amount then
    redis.call('HDEL', c.settled, id)
    if string.match(amount, NUMBER) then
      add(c, 0, -tonumber(amount))
      return tonumber(amount)
    end
  end
  return nil
end
local function let_expire(key, seconds)
  if redis.call('TTL', key) < 0 then redis.call('EXPIRE', key, seconds) end
end
"""
RESERVE: Final = (
    COMMON
    + """
local id, holder, amount, lease, expire = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local now, counters, unknown, full = clock(), {}, {}, {}
for i = 1, #KEYS / 4 do
  local c, limit = load(i), ARGV[5 + i]
  counters[i] = c
  if not c then table.insert(unknown, i)
  elseif limit ~= '' and amount > 0 then
    local open = reserved(c, now)
    if used(c) + open + amount > tonumber(limit) then
      table.insert(full, {i, whole(c.spent_sum), whole(c.settled_sum), whole(open)})
    end
  end
end
if #unknown > 0 then return {unknown, {}} end
if #full > 0 then return {{}, full} end
for _, c in ipairs(counters) do
  remove(c, id)
  redis.call('HSET', c.open, id, whole(amount) .. ' ' .. holder)
  add_open(c, holder, amount, now + tonumber(lease))
  let_expire(c.open, expire)
  let_expire(c.leases, expire)
end
return {{}, {}}
"""
)
SETTLE: Final = (
    COMMON
    + """
local changes = {}
for i = 1, #KEYS / 4 do
  local c = load(i)
  local before = c and used(c)
  if c and remove(c, ARGV[1]) then
    redis.call('HSET', c.settled, ARGV[1], ARGV[2])
    let_expire(c.settled, ARGV[3])
    add(c, 0, tonumber(ARGV[2]))
    table.insert(changes, {i, whole(before), whole(used(c))})
  end
end
return changes
"""
)
RELEASE: Final = (
    COMMON
    + """
for i = 1, #KEYS / 4 do
  local c = load(i)
  if c then remove(c, ARGV[1]) end
end
"""
)
APPLY_POSTED: Final = (
    COMMON
    + """
local c, missing = load(1), {}
local before = c and used(c)
for i = 1, #ARGV, 2 do
  if c and remove(c, ARGV[i]) then add(c, tonumber(ARGV[i + 1]), 0)
  else table.insert(missing, ARGV[i]) end
end
return {missing, c and {whole(before), whole(used(c))} or {}}
"""
)
MARK_POSTED: Final = (
    COMMON
    + """
local c = load(1)
for _, id in ipairs(ARGV) do
  local amount = c and remove(c, id)
  if amount then add(c, amount, 0) end
end
"""
)
PUBLISH: Final = (
    COMMON
    + """
local now, c = clock(), load(1) or keys_of(1)
c.spent_sum, c.settled_sum = tonumber(ARGV[1]), c.settled_sum or 0
add(c, 0, 0)
local flat, dead, any = redis.call('HGETALL', c.leases), {}, false
for i = 1, #flat, 2 do
  local sum, ends = string.match(flat[i + 1], LEASE)
  if not sum or tonumber(ends) <= now then
    redis.call('HDEL', c.leases, flat[i])
    dead[flat[i]], any = true, any or tonumber(sum) ~= 0
  end
end
if any then  -- the open reservations of dead processes
  local open = redis.call('HGETALL', c.open)
  for i = 1, #open, 2 do
    local amount, holder = string.match(open[i + 1], OPEN)
    if not amount or dead[holder] then redis.call('HDEL', c.open, open[i]) end
  end
end
for _, key in pairs(keys_of(1)) do redis.call('EXPIRE', key, ARGV[2]) end
return {whole(c.spent_sum), whole(c.settled_sum), whole(reserved(c, now))}
"""
)
STANDINGS: Final = (
    COMMON
    + """
local found, now = {}, clock()
for i = 1, #KEYS / 4 do
  local c = load(i)
  found[i] = c and {whole(c.spent_sum), whole(c.settled_sum), whole(reserved(c, now))} or false
end
return found
"""
)
RENEW: Final = (
    COMMON
    + """
local ends = string.format('%.3f', clock() + tonumber(ARGV[2]))
for i = 1, #KEYS / 4 do
  local c = load(i)
  local sum = c and string.match(redis.call('HGET', c.leases, ARGV[1]) or '', LEASE)
  if sum then redis.call('HSET', c.leases, ARGV[1], sum .. ' ' .. ends) end
end
"""
)
FORGET: Final = "redis.call('DEL', unpack(KEYS))"
