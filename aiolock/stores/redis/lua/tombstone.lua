-- give_up(what, ends): copies of it that come until then (ms) are to find that it was given up: a member
-- `!<what>`, in a band of scores that holds nothing else. Those before it that have ended go.
local function give_up(what, ends)
  redis.call('ZREM', KEYS[1], '!' .. what) -- at maxmemory it is allowed, and after it so is ZADD
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], FIRST + 1e12, FIRST + now)) do
    redis.call('ZREM', KEYS[1], old)
  end
  redis.call('ZADD', KEYS[1], FIRST + ends, '!' .. what)
  keep(math.max(ends - now, 1000))
end
