-- adopt: a waiter holds, instead of whoever had the key, what was detached, under a new fence. The queue is not looked
-- at.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 the detached grant, see `detach`  2 the waiter, with the form of the grant  3 ttl (ms)  4 not after (µs)
-- returns  {fence, lease (ms)}  it holds it, now or by an earlier copy
--          0  the key was used or discarded, the grant was broken or has ended, or the waiter has given up
--@include names
--@include clock
--@include late
--@include allow_writes
--@include keep
--@include closes_for
--@include as_shared
--@include next_fence

local token, waiter, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local too_late = late(ARGV[4])
if too_late then
  return too_late
end
local tombstone = redis.call('ZSCORE', HOLDERS, '!' .. waiter)
if tombstone and tombstone - COUNTERS > NOW then
  return 0
end
local ends = redis.call('ZSCORE', HOLDERS, token)
local sharing = as_shared(token)
if not ends and sharing then
  ends = redis.call('ZSCORE', HOLDERS, sharing)
  if ends or redis.call('ZSCORE', HOLDERS, as_shared(waiter)) then
    token, waiter = sharing, as_shared(waiter)
  end
end
if ends and tonumber(ends) > NOW then
  local fence = next_fence(tonumber(token:match(FENCE_OF)))
  allow_writes()
  redis.call('ZADD', HOLDERS, NOW + ttl, waiter .. ':' .. fence)
  if waiter:byte() == SHARED then
    redis.call('ZADD', HOLDERS, fence, waiter)
    redis.call('ZREM', HOLDERS, (token:match('^(.*):')))
  end
  redis.call('ZREM', HOLDERS, token) -- now that they do not vanish, see `with_placeholder`
  keep(ttl + KEPT + closes_for(waiter))
  return {tonumber(fence), ttl}
end
-- Asked again: a shared grant is found by its waiter, an exclusive one is the first.
local fence = waiter:byte() == SHARED and redis.call('ZSCORE', HOLDERS, waiter)
local grant = redis.call('ZRANGE', HOLDERS, 0, 0)[1]
if fence then
  grant = waiter .. ':' .. string.format('%.0f', fence)
elseif not grant or grant:sub(1, #waiter + 1) ~= waiter .. ':' then
  return 0
end
ends = redis.call('ZSCORE', HOLDERS, grant)
if ends and tonumber(ends) > NOW then
  return {tonumber(grant:match(FENCE_OF)), math.floor(ends) - NOW}
end
return 0
