-- detach: a grant belongs, for a while, to whoever has the key of another, which takes its place among the holders.
-- The queue is not looked at.
--
-- KEYS  1 holders
-- ARGV  1 the grant  2 the detached grant, whose client is `=` and the key, with the same fence  3 ttl (ms)
-- returns  1 it is detached, now or by an earlier copy  0 it had ended, or the key was used or discarded since
--@include names
--@include clock
--@include allow_writes
--@include keep
--@include closes_for
--@include as_shared

local grant, token, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local tombstone = redis.call('ZSCORE', HOLDERS, '!' .. token:match('^(.*):'))
if tombstone and tombstone - COUNTERS > NOW then
  return 0 -- it was discarded before this copy came
end
local ends = redis.call('ZSCORE', HOLDERS, grant)
if not ends and as_shared(grant) then
  if redis.call('ZSCORE', HOLDERS, token) then
    return 1
  end
  grant, token = as_shared(grant), as_shared(token)
  ends = redis.call('ZSCORE', HOLDERS, grant)
end
if not ends then
  return redis.call('ZSCORE', HOLDERS, token) and 1 or 0
elseif tonumber(ends) <= NOW then
  return 0
end
allow_writes()
redis.call('ZADD', HOLDERS, NOW + ttl, token)
if grant:byte() == SHARED then
  redis.call('ZADD', HOLDERS, token:match(FENCE_OF), (token:match('^(.*):')))
  redis.call('ZREM', HOLDERS, (grant:match('^(.*):')))
end
redis.call('ZREM', HOLDERS, grant) -- now that they do not vanish, see `with_placeholder`
keep(ttl + KEPT + closes_for(token))
return 1
