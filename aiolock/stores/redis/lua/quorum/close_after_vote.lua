-- close_after_vote(waiter, number, granted, lost, unsure, entered): keeps the name closed after a vote that has ended,
-- which was given at `granted` (ms), for as long as its waiter's terms say, as in `close`: by a reserved vote. The
-- first waiter in the queue is notified, and asks when the lock opens. If the vote was shared, only waiters that do not
-- share are kept out. Returns whether the name is closed.
--   lost     when its waiter lost it (ms); nil if the waiter gave it back
--   unsure   the waiter may never have been inside
--   entered  for how many ms the waiter was inside, if reported; else nil or false
--@include keep
--@include push
local function close_after_vote(waiter, number, granted, lost, unsure, entered)
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
  redis.call('ZADD', VOTES, opens, waiter:sub(1, 1) .. 'f0:' .. RESERVED .. ':0:' .. number .. ':0:' .. granted)
  keep(opens - NOW + KEPT)
  local first = redis.call('ZRANGE', QUEUE, 0, 0)[1]
  if first then
    push(first, first:match(CLIENT) or first, 'd ' .. VOTES)
  end
  return true
end
