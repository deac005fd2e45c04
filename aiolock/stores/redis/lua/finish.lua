-- finish: the work for which the lock was held is done. For a while, no waiter that wants it done once
-- enters: those in the queue leave it and are notified, and later ones get that answer. A grant with a
-- reserved owner holds the lock meanwhile, as in `close`.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 waiter  2 fence of the grant  3 for how long that is remembered (ms)
--       4 prefix of the clients' channels
--       5 until when older copies of its `acquire` may come (µs), 0: none are on their way
-- returns  1 it was a holder, or has finished before  0 neither
--@include names
local CHANNELS = ARGV[4]
--@include clock
--@include dismiss
--@include with_rest

local waiter, fence, remembered, copies = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local done = DONE .. '0:' .. fence
local grant = waiter .. ':' .. fence
if not redis.call('ZSCORE', HOLDERS, grant) then
  return redis.call('ZSCORE', HOLDERS, done) and 1 or 0
end
-- A late copy gets the answer "done" for as long as that is remembered, so until `copies` at least.
remembered = math.max(remembered, math.ceil(copies / 1000) - NOW)
redis.call('PEXPIRE', HOLDERS, remembered + KEPT) -- first: at maxmemory it is allowed, then so is ZADD
redis.call('ZADD', HOLDERS, NOW + remembered, done)
redis.call('ZREM', HOLDERS, grant) -- now that they do not vanish, see `with_placeholder`
local step = {}
dismiss(step, '-inf')
return with_rest(1, step.rest)
