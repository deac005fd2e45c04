-- report_handoff: a client has handed the lock off among its own waiters, once or several times in a row, and
-- reports that. The last waiter of the series, the target, becomes the holder in place of the source, which was the
-- holder here, and gets a claim of its own; those between have released it already, and leave the queue.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 the grant of the source  2 that of the target  3 the fence of the target  4 its claim (ms)
--       5… the waiters of the series, in order, up to the target  the last: not after (µs)
-- returns  1 the target is the holder now, or was already (a copy)  0 the source was no holder
--@include names
--@include clock
--@include late

local source, target, fence, claim = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local too_late = late(ARGV[#ARGV])
if too_late then
  return too_late
elseif not redis.call('ZSCORE', HOLDERS, source) then
  return redis.call('ZSCORE', HOLDERS, target) and 1 or 0
end
redis.call('PEXPIRE', HOLDERS, claim + KEPT) -- first: at maxmemory it is allowed, and then so is ZADD
redis.call('ZADD', HOLDERS, NOW + claim + UNCONFIRMED, target)
redis.call('ZREM', HOLDERS, source) -- now that they do not vanish, see `with_placeholder`
redis.call('SET', FENCE, fence, 'PX', '600000')
local unpacked = table.unpack or unpack -- where Lua 5.4 has it, and where 5.1 does
redis.call('ZREM', QUEUE, unpacked(ARGV, 5, #ARGV - 1))
return 1
