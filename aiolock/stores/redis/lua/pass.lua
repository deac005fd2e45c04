-- pass: a client reports that it has handed the lock off among its own waiters, under a lease that it had.
-- The target becomes the holder instead of the source, for a claim of its own; those between have left.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 the grant of the source  2 that of the target  3 the fence of the target  4 its claim (ms)
--       5… those that have held it since, up to the target  the last: not after (µs)
-- returns  1 it is so, or was before  0 the source was no holder
--@include names
--@include clock
--@include late

local giver, taker, fence, claim = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local too_late = late(ARGV[#ARGV])
if too_late then
  return too_late
elseif not redis.call('ZSCORE', HOLDERS, giver) then
  return redis.call('ZSCORE', HOLDERS, taker) and 1 or 0
end
redis.call('PEXPIRE', HOLDERS, claim + KEPT) -- first: at maxmemory it is allowed, and then so is ZADD
redis.call('ZADD', HOLDERS, NOW + claim + UNCONFIRMED, taker)
redis.call('ZREM', HOLDERS, giver) -- now that they do not vanish, see `anchored`
redis.call('SET', FENCE, fence, 'PX', '600000')
local unpacked = table.unpack or unpack -- where Lua 5.4 has it, and where 5.1 does
redis.call('ZREM', QUEUE, unpacked(ARGV, 5, #ARGV - 1))
return 1
