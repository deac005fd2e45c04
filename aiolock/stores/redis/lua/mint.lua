-- grant(waiter, lease): makes it a holder under a new fence, which it returns as text.
-- A fence is max(last + 1, now in µs): it grows even when the key has expired or a fail-over rolled
-- it back, and above `floor`, the fence of the holder before, even when the clock was set back.
local floor = 0
local share -- for what is shared, from `shared`
local function grant(who, lease)
  local fence = stamp
  local last = redis.call('SET', KEYS[3], fence, 'PX', 600000, 'GET')
  last = math.max(last and tonumber(last) or 0, floor)
  if last >= tonumber(fence) then
    fence = string.format('%.0f', last + 1)
    redis.call('SET', KEYS[3], fence, 'PX', 600000)
  end
  -- Kept longer than the lease, so that it is reaped, and its client told, rather than forgotten.
  if who:byte() == 120 then -- x
    redis.call('ZADD', KEYS[1], now + lease, who .. ':' .. fence)
    redis.call('PEXPIRE', KEYS[1], lease + 60000)
  else
    share(who, lease, fence)
  end
  return fence
end
