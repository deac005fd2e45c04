-- next_fence(floor): the fence of a new grant, as text: max(last + 1, now in µs).
-- It grows even when the key has expired or a fail-over rolled it back, and above `floor`, the fence
-- of the holder before, even when the clock was set back.
local function next_fence(floor)
  -- Numbers as text: those that Lua turns into text cost the server as much as a command.
  local last = redis.call('SET', FENCE, STAMP, 'PX', '600000', 'GET')
  last = math.max(tonumber(last or 0), floor)
  if last - STAMP < 0 then
    return STAMP
  end
  local fence = string.format('%.0f', last + 1)
  redis.call('SET', FENCE, fence, 'PX', '600000')
  return fence
end
