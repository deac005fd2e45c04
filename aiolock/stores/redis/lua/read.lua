-- read: what has been counted, and the value that was put up with it. Writes nothing.
--
-- KEYS  1 holders  2 value
-- returns  {the count, the value or ''}

local FIRST = 1e15 -- see `shared`
local count = redis.call('ZSCORE', KEYS[1], 'count')
return {count and count - FIRST or 0, redis.call('GET', KEYS[2]) or ''}
