-- grant(waiter, lease, mark): makes it a holder under a new fence, which it returns as text. Its score
-- is the end of the lease, a whole number of ms, and `mark`: `UNCONFIRMED` where the lease is the claim
-- of a pushed grant, until a renewal writes another. So one that ends unconfirmed can be told.
-- A fence is max(last + 1, now in µs): it grows even when the key has expired or a fail-over rolled
-- it back, and above `floor`, the fence of the holder before, even when the clock was set back.
local FIRST = 1e15 -- from here on no score is the end of a lease, see `shared`
local UNCONFIRMED = 0.5
local floor = 0
local share -- for what is shared, from `shared`
--@include outlives
local function grant(who, lease, mark)
  local fence = stamp
  -- Numbers as text: those that Lua turns into text cost the server as much as a command.
  local last = redis.call('SET', KEYS[3], fence, 'PX', '600000', 'GET')
  last = math.max(tonumber(last or 0), floor)
  if last - fence >= 0 then
    fence = string.format('%.0f', last + 1)
    redis.call('SET', KEYS[3], fence, 'PX', '600000')
  end
  -- Kept longer than the lease, so that it is reaped, and its client told, rather than forgotten.
  local ends = now + lease + (mark or 0)
  if who:byte() ~= 115 then -- not s
    redis.call('ZADD', KEYS[1], ends, who .. ':' .. fence)
    redis.call('PEXPIRE', KEYS[1], lease + 60000 + outlives(who))
  else
    share(who, lease, fence, ends)
  end
  return fence
end

-- hand_over(who, claim): the same for one that waits, who gets the claim first. Returns what it is to be
-- told.
local function hand_over(who, claim)
  local fence = grant(who, claim, UNCONFIRMED)
  return 'g ' .. who .. ' ' .. fence .. ' ' .. claim .. ' ' .. stamp .. ' ' .. KEYS[1]
end
