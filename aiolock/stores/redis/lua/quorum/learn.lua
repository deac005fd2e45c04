-- learn(number, lasts): the highest number that is known is at least this from now on, and so behind a lease
-- of so many ms.
local function learn(number, lasts)
  if tonumber(number) > tonumber(redis.call('GET', LAST) or 0) then
    -- Not for less than before: that is for a vote with a longer lease.
    redis.call('SET', LAST, number, 'PX', math.max(lasts + REMEMBERED, redis.call('PTTL', LAST)))
  elseif redis.call('PTTL', LAST) < lasts + REMEMBERED then
    redis.call('PEXPIRE', LAST, lasts + REMEMBERED)
  end
end
