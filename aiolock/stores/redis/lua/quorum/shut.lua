-- shut(waiter, number, granted, lost, unsure, entered): a vote that was given at `granted` (ms) has ended, and
-- its terms may keep the others out for a while, as in `close`: then it is nobody's. Who is first in line
-- is told, and asks for how long. Where it shared, it keeps out those only that do not. Returns whether it is so.
--   lost     when its waiter lost it (ms); nil where it gave it back
--   unsure   it may never have been inside
--   entered  for how many ms it was, where it says so; else nil or false
--@include keep
--@include tell
local function shut(waiter, number, granted, lost, unsure, entered)
  if not waiter:find(HAS_TERMS) then
    return false
  end
  local terms = waiter:match('^[^:]*')
  local delay, least, period = terms:match('%+(%d+)'), terms:match('~(%d+)'), terms:match('@(%d+)')
  local opens = lost and delay and lost + delay or 0
  opens = math.max(opens, least and granted + least or 0, least and entered and NOW - entered + least or 0)
  period = not (lost and unsure) and tonumber(period) or 0
  opens = math.max(opens, period > 0 and (math.floor(granted / period) + 1) * period or 0)
  if opens <= NOW then
    return false
  end
  redis.call('ZADD', VOTES, opens, waiter:sub(1, 1) .. 'f0:' .. NOBODY .. ':0:' .. number .. ':0:' .. granted)
  keep(opens - NOW + KEPT)
  local first = redis.call('ZRANGE', LINE, 0, 0)[1]
  if first then
    tell(first, first:match(CLIENT) or first, 'd ' .. VOTES)
  end
  return true
end
