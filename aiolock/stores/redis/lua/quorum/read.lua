-- quorum/read: the count, the value posted with it, and how long both are kept. Writes nothing.
--
-- KEYS  1 votes  2 value
-- returns  {the count, the value or '', for how long (ms)}
--@include quorum/names

local count = redis.call('ZSCORE', VOTES, 'count')
if not count then
  return {0, '', 0}
end
local value = redis.call('GET', KEYS[2]) or ''
return {count - COUNTERS, value, math.max(0, redis.call('PTTL', value ~= '' and KEYS[2] or VOTES))}
