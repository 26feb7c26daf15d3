"""Lua scripts. Each runs as a whole before Redis serves another client.

Every script that writes messages begins with the same guard and ends with the new position:

    KEYS[1]   the hash of positions          ARGV[3]   the token of the owner
    ARGV[1]   its field with the owner       ARGV[4]   the position that the sink knows
    ARGV[2]   its field with the position    ARGV[5]   the position after these messages

A script without an effect answers with the reason. Redis does not undo what a script has written
when a later command fails, so everything that can fail is tried first: the guard writes the owner
again, which fails on a full server and on a replica, and the types of keys are compared.

Redis converts numbers in Lua to floating point. Positions are therefore only compared as text.
"""

from __future__ import annotations

_GUARD = b"""
local known = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2])
if known[1] ~= ARGV[3] then return {'owner', known[1] or ''} end
if (known[2] or '') ~= ARGV[4] then return {'position', known[2] or ''} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
local repeated = 0
"""
_COMMIT = b"""
redis.call('HSET', KEYS[1], ARGV[2], ARGV[5])
return {'stored', repeated}
"""

CLAIM = b"""
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HGETALL', KEYS[1])
"""

# ARGV[6] '~' or '=', ARGV[7] the maximum length or 0; then five per message: the number of its
# stream in KEYS, negative if it has no key; entry id, id, key, payload.
STREAM = (
    _GUARD
    + b"""
for at = 2, #KEYS do
  local kind = redis.call('TYPE', KEYS[at]).ok
  if kind ~= 'none' and kind ~= 'stream' then return {'type', KEYS[at], kind} end
end
local trim, limit = ARGV[6], ARGV[7]
local function add(stream, entry, ...)
  if limit == '0' then return redis.pcall('XADD', stream, entry, ...) end
  return redis.pcall('XADD', stream, 'MAXLEN', trim, limit, entry, ...)
end
local function same(found, id, payload)
  if #found == 0 then return false end
  local fields = found[1][2]
  return fields[2] == id and fields[#fields] == payload
end
for at = 8, #ARGV, 5 do
  local number, entry, id = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  local key, payload = ARGV[at + 3], ARGV[at + 4]
  local stream, added = KEYS[math.abs(number)], nil
  if number < 0 then
    added = add(stream, entry, 'id', id, 'payload', payload)
  else
    added = add(stream, entry, 'id', id, 'key', key, 'payload', payload)
  end
  if type(added) == 'table' and added.err then
    if entry == '*' or not string.find(added.err, 'equal or smaller') then return added end
    local found = redis.call('XRANGE', stream, entry, entry)
    if not same(found, id, payload) then return {'taken', stream, entry} end
    repeated = repeated + 1
  end
end
"""
    + _COMMIT
)

# ARGV[6] milliseconds until keys expire or 0, ARGV[7] a letter per key: s to set it, d to delete
# it; then a value per key.
STRING = (
    _GUARD
    + b"""
local expiry, plan = ARGV[6], ARGV[7]
for at = 2, #KEYS do
  if string.byte(plan, at - 1) == 100 then
    redis.call('DEL', KEYS[at])
  elseif expiry == '0' then
    redis.call('SET', KEYS[at], ARGV[at + 6])
  else
    redis.call('SET', KEYS[at], ARGV[at + 6], 'PX', expiry)
  end
end
"""
    + _COMMIT
)

# From ARGV[6] on: channel and payload of each message.
PUBLISH = (
    _GUARD
    + b"""
for at = 6, #ARGV, 2 do redis.call('PUBLISH', ARGV[at], ARGV[at + 1]) end
"""
    + _COMMIT
)
