-- finish: what the lock was held for is done. Of those who want it done once nobody enters for a
-- while: they leave the queue and are told, and whoever asks later is told too. A grant that is
-- nobody's keeps the lock meanwhile, as in `close`.
--
-- KEYS  1 holders  2 queue
-- ARGV  1 waiter  2 fence of the grant  3 for how long that is remembered (ms)
--       4 prefix of the clients' channels
--       5 until when older copies of its `acquire` may come (µs), 0: none are on their way
-- returns  1 it was a holder, or has finished before  0 neither

--@include clock
local done = 'xfo0:-:0:' .. ARGV[2]
if redis.call('ZREM', KEYS[1], ARGV[1] .. ':' .. ARGV[2]) == 0 then
  return redis.call('ZSCORE', KEYS[1], done) and 1 or 0
end
-- As long as it is remembered, a late copy finds that it is done: so at least until then.
local keep = math.max(tonumber(ARGV[3]), math.ceil(tonumber(ARGV[5]) / 1000) - now)
redis.call('ZADD', KEYS[1], now + keep, done)
redis.call('PEXPIRE', KEYS[1], keep + 60000)
local told = {}
for _, waiter in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  local client = waiter:match('^x%a*o%a*%d+[^:]*:([^:]+):')
  if client then
    redis.call('ZREM', KEYS[2], waiter)
    if not told[client] then
      told[client] = true
      redis.pcall('PUBLISH', ARGV[4] .. client, 'd ' .. KEYS[1])
    end
  end
end
return 1
