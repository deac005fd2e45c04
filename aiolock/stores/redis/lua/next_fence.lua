-- next_fence(floor): the fence of a new grant, as text: max(last + 1, now in µs).
-- It grows even if the key has expired or a fail-over has rolled it back. It is above `floor`, the fence of
-- the last holder, even if the clock was set back.
local function next_fence(floor)
  -- Numbers stay text: each that Lua turns into text costs the server as much as a command.
  local last = redis.call('SET', FENCE, STAMP, 'PX', '600000', 'GET')
  if last and last - STAMP >= 0 or floor - STAMP >= 0 then
    local fence = string.format('%.0f', math.max(tonumber(last or 0), floor) + 1)
    redis.call('SET', FENCE, fence, 'PX', '600000')
    return fence
  end
  return STAMP
end
