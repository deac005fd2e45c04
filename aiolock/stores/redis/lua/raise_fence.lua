-- raise_fence(step): raises the last fence to `step.floor` if it is lower, so that the next grant, in this call or a
-- later one, gets a higher one: clients may have used fences up to there by local hand-offs.
local function raise_fence(step)
  if tonumber(redis.call('GET', FENCE) or 0) < step.floor then
    redis.call('SET', FENCE, string.format('%.0f', step.floor), 'PX', '600000')
  end
end
