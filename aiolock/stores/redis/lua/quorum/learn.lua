-- learn(number, lasts): raises the last number to this one if it is lower, and keeps it beyond the end of a lease of
-- `lasts` ms.
local function learn(number, lasts)
  if tonumber(number) > tonumber(redis.call('GET', LAST) or 0) then
    -- No shorter than before: the longer time is for a vote with a longer lease.
    redis.call('SET', LAST, number, 'PX', math.max(lasts + REMEMBERED, redis.call('PTTL', LAST)))
  elseif redis.call('PTTL', LAST) < lasts + REMEMBERED then
    redis.call('PEXPIRE', LAST, lasts + REMEMBERED)
  end
end
