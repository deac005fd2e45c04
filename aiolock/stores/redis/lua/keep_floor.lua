-- keep_floor(step): the next grant, in this call or a later one, gets a fence above `step.floor`.
local function keep_floor(step)
  if tonumber(redis.call('GET', FENCE) or 0) < step.floor then
    redis.call('SET', FENCE, string.format('%.0f', step.floor), 'PX', '600000')
  end
end
