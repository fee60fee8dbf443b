"""The Lua scripts of the counters in Redis; ``redis_store`` calls them.

KEYS has four keys for each budget (sums, open reservations, settled reservations, leases) and one
for each limit: the leases of slots, or the text of a debt. ARGV begins with the time, or is empty
for the clock of Redis. Numbers leave a script as text, because Redis would cut them to 64-bit
integers without an error.
"""

from typing import Final

COMMON: Final = """
local NUMBER, OPEN, LEASE = '^%-?%d+$', '^(%-?%d+) (.*)$', '^(%-?%d+) (%d+%.?%d*)$'
local function whole(n) return string.format('%.0f', n) end
local function clock()  -- a store with a clock of its own says the time
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local t = redis.call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1000000
end
local function keys_of(i)
  return {sums = KEYS[4 * i - 3], open = KEYS[4 * i - 2], settled = KEYS[4 * i - 1],
          leases = KEYS[4 * i]}
end
-- Return the keys and the sums of a counter, or nil if it is unknown or malformed; then delete it.
local function load(i, c)
  local valid = true
  c = c or keys_of(i)
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
-- Return the open amounts of the holders whose lease has not ended; ``drop``: delete the others.
local function reserved(c, now, drop)
  local flat, total = redis.pcall('HGETALL', c.leases), 0
  if flat.err then
    redis.call('DEL', c.leases)
    return 0
  end
  for i = 1, #flat, 2 do
    local sum, ends = string.match(flat[i + 1], LEASE)
    if not sum then redis.call('HDEL', c.leases, flat[i])
    elseif tonumber(ends) > now then total = total + tonumber(sum)
    elseif drop then redis.call('HDEL', c.leases, flat[i]) end
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
VALUES: Final = """
local now, holder, lease, id = clock(), ARGV[2], tonumber(ARGV[3]), ARGV[4]
local expire, expire_limits = ARGV[5], ARGV[6]
local now_us = math.floor(now * 1000000)
local counters, values, unknown, fits, at = {}, {}, {}, true, 1
for i = 1, #ARGV - 6 do
  local kind, amount, limit, floor = string.match(ARGV[6 + i], '^(%a+) (%S+) (%S+) (%S+)$')
  local c = {}
  local spent, settled, open = 0, 0, 0
  floor = tonumber(floor)
  if kind == 'budget' then
    c.sums, c.open, c.settled, c.leases = KEYS[at], KEYS[at + 1], KEYS[at + 2], KEYS[at + 3]
    at = at + 4
    c = load(i, c)
    if c then spent, settled, open = c.spent_sum, c.settled_sum, reserved(c, now)
    else table.insert(unknown, i) end
  elseif kind == 'slots' then
    c.leases, at = KEYS[at], at + 1
    open = math.max(reserved(c, now, changes), floor)
  else
    c.debt, at = KEYS[at], at + 1
    local due = redis.pcall('GET', c.debt)
    due = type(due) == 'string' and string.match(due, NUMBER) or 0
    spent = math.max(tonumber(due) - now_us, floor)
  end
  if c then c.kind, c.amount = kind, tonumber(amount) end  -- after ``load``, which reads keys only
  counters[i] = c
  values[i] = c and {whole(spent), whole(settled), whole(open)} or false
  fits = fits and (limit == '-' or not c
    or spent + settled + open + c.amount <= tonumber(limit))
end
"""
PEEK: Final = COMMON + "local changes = false" + VALUES + "return values"
TAKE: Final = (
    COMMON
    + "local changes = true"
    + VALUES
    + """
if #unknown > 0 then return {0, unknown, {}} end
if not fits then return {0, {}, values} end
for i, c in ipairs(counters) do
  if c.kind == 'rate' then
    redis.call('SET', c.debt, whole(now_us + values[i][1] + c.amount), 'EX', expire_limits)
  elseif c.kind == 'slots' then
    add_open(c, holder, c.amount, now + lease)
    redis.call('EXPIRE', c.leases, expire_limits)
  else
    remove(c, id)
    redis.call('HSET', c.open, id, whole(c.amount) .. ' ' .. holder)
    add_open(c, holder, c.amount, now + lease)
    let_expire(c.open, expire)
    let_expire(c.leases, expire)
  end
end
return {1, {}, values}
"""
)
ADD: Final = (
    COMMON
    + """
local now, holder = clock(), ARGV[2]
local ends = now + tonumber(ARGV[3])
for i, key in ipairs(KEYS) do
  local kind, amount = ARGV[3 + 2 * i], tonumber(ARGV[4 + 2 * i])
  if kind == 'slots' then
    local flat = redis.pcall('HGET', key, holder)
    local sum, old_end = string.match(type(flat) == 'string' and flat or '', LEASE)
    if sum and tonumber(old_end) > now then
      redis.call('HSET', key, holder,
        whole(math.max(0, sum + amount)) .. ' ' .. string.format('%.3f', ends))
    end
  else
    local due = redis.pcall('GET', key)
    if type(due) == 'string' and string.match(due, NUMBER) then
      redis.call('SET', key, whole(tonumber(due) + amount), 'EX', ARGV[4])
    end
  end
end
"""
)
SETTLE: Final = (
    COMMON
    + """
local changes = {}
for i = 1, #KEYS / 4 do
  local c = load(i)
  local before = c and used(c)
  if c and remove(c, ARGV[2]) then
    redis.call('HSET', c.settled, ARGV[2], ARGV[3])
    let_expire(c.settled, ARGV[4])
    add(c, 0, tonumber(ARGV[3]))
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
  if c then remove(c, ARGV[2]) end
end
"""
)
APPLY_POSTED: Final = (
    COMMON
    + """
local c, missing = load(1), {}
local before = c and used(c)
for i = 2, #ARGV, 2 do
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
for i = 2, #ARGV do
  local amount = c and remove(c, ARGV[i])
  if amount then add(c, amount, 0) end
end
"""
)
PUBLISH: Final = (
    COMMON
    + """
local now, c = clock(), load(1) or keys_of(1)
c.spent_sum, c.settled_sum = tonumber(ARGV[2]), c.settled_sum or 0
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
for _, key in pairs(keys_of(1)) do redis.call('EXPIRE', key, ARGV[3]) end
return {whole(c.spent_sum), whole(c.settled_sum), whole(reserved(c, now))}
"""
)
RENEW: Final = (
    COMMON
    + """
local holder, ends = ARGV[2], string.format('%.3f', clock() + tonumber(ARGV[3]))
for i = 1, #ARGV - 4 do
  local held = ARGV[4 + i]
  if held == '' then
    local c = load(i)
    local sum = c and string.match(redis.call('HGET', c.leases, holder) or '', LEASE)
    if sum then redis.call('HSET', c.leases, holder, sum .. ' ' .. ends) end
  else
    reserved({leases = KEYS[i]}, 0)  -- deletes a malformed value
    if held == '0' then redis.call('HDEL', KEYS[i], holder)
    else redis.call('HSET', KEYS[i], holder, held .. ' ' .. ends) end
    redis.call('EXPIRE', KEYS[i], ARGV[4])
  end
end
"""
)
FORGET: Final = "redis.call('DEL', unpack(KEYS))"
SWAP: Final = """
for i, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  local now = ''
  if kind == 'string' then now = redis.call('GET', key)
  elseif kind ~= 'none' then redis.call('DEL', key) end
  if now ~= ARGV[i] then return 0 end
end
for i, key in ipairs(KEYS) do redis.call('SET', key, ARGV[#KEYS + i], 'EX', ARGV[#ARGV]) end
return 1
"""
