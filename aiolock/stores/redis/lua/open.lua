-- open: what a client does once. Every command that the other scripts use is tried on keys of the
-- client's own, so that a missing ACL rule is an error here and not in the middle of a hand-off;
-- then the client says who it is, for `status` to show. Leaves nothing but that.
--
-- KEYS  1 holders  2 queue  3 fence (of a name nobody else uses)  4 where the client says who it is
-- ARGV  1 who it is  2 how long to remember it (ms)
-- returns  the eviction policy, where there is a memory limit and we may know; else ''

redis.call('TIME')
redis.call('SET', KEYS[3], '0', 'PX', 1, 'GET')
redis.call('PEXPIRE', KEYS[1], 1000)
redis.call('ZADD', KEYS[1], 0, 'tried')
redis.call('PEXPIRE', KEYS[1], 1000)
redis.call('ZADD', KEYS[2], 0, 'tried')
redis.call('PEXPIRE', KEYS[2], 1000)
redis.call('EXISTS', KEYS[1])
redis.call('ZRANGE', KEYS[1], 0, 0)
redis.call('ZRANGEBYSCORE', KEYS[1], 0, 0)
redis.call('ZSCORE', KEYS[1], 'tried')
redis.call('ZCARD', KEYS[2])
redis.call('ZRANK', KEYS[2], 'tried')
redis.call('ZPOPMIN', KEYS[2])
redis.call('ZREM', KEYS[1], 'tried')
redis.call('PUBSUB', 'NUMSUB', KEYS[4])
redis.call('GET', KEYS[4])
redis.call('SET', KEYS[4], ARGV[1], 'PX', ARGV[2])

local memory = redis.pcall('INFO', 'memory')
if type(memory) ~= 'string' or memory:find('maxmemory:0\r', 1, true) then
  return ''
end
return memory:match('maxmemory_policy:(%S+)') or ''
