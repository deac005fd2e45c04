-- learn(number, lasts, shared): raises the last number to this one if it is lower, and keeps it beyond the end of a
-- lease of `lasts` ms. `shared`: votes are out that are shared, and their index stays complete, if it was.
--@include quorum/is_indexed
local function learn(number, lasts, shared)
  local last = redis.call('GET', LAST)
  if tonumber(number) > tonumber(last or 0) then
    -- No shorter than before: the longer time is for a vote with a longer lease.
    redis.call('SET', LAST, number, 'PX', math.max(lasts + REMEMBERED, redis.call('PTTL', LAST)))
    if shared and is_indexed(last) then
      redis.call('ZADD', VOTES, string.format('%.0f', COUNTERS + number), INDEX_COMPLETE)
    end
  elseif redis.call('PTTL', LAST) < lasts + REMEMBERED then
    redis.call('PEXPIRE', LAST, lasts + REMEMBERED)
  end
end
