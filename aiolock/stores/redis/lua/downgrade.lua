-- downgrade: an exclusive holder becomes a shared one without a release: the same grant, with the same fence
-- and the same end. Waiters at the head of the queue that may share the lock enter.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 waiter, as it was granted  2 fence of the grant  3 prefix of the clients' channels
-- returns  1 it is a shared holder now  0 it is no holder any more
--@include names
local CHANNELS = ARGV[3]
--@include clock
--@include new_step
--@include allow_writes
--@include keep
--@include as_shared
--@include advance
--@include with_rest

local waiter, fence = ARGV[1], ARGV[2]
local grant = waiter .. ':' .. fence
local sharing = as_shared(grant)
local ends = redis.call('ZSCORE', HOLDERS, grant)
if not ends then
  return redis.call('ZSCORE', HOLDERS, sharing) and 1 or 0
elseif tonumber(ends) <= NOW then
  return 0
end
allow_writes()
redis.call('ZADD', HOLDERS, ends, sharing, fence, as_shared(waiter))
redis.call('ZREM', HOLDERS, grant) -- now that they do not vanish, see `with_placeholder`
keep(math.floor(ends) - NOW + KEPT)
local step = new_step()
step.floor = tonumber(fence)
advance(step)
return with_rest(1, step.rest)
