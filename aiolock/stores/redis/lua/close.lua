-- close(step, grant, lost, claim): keeps the lock closed for as long as the terms of an ended grant say: `+`
-- ms after a loss, `~` ms after the grant, and `@` until the end of the grant's period of `@` ms.
-- `lost`: when its holder lost it (ms), else nil. A grant without an owner keeps others out: it ends like
-- any other, and is shared if the ended one was. The first waiter in the queue is notified, and asks when the
-- lock opens. Returns whether the lock is closed.
-- `claim`: it was lost unconfirmed, so it may have been entered, or not. With `@` it was not, because such
-- a waiter confirms its grant before it enters.
--@include keep
--@include count_permits
--@include push
local function close(step, grant, lost, claim)
  local mode, rule, terms, fence = grant:match(MODE_RULE_TERMS_FENCE)
  if not terms then
    return false
  end
  local delay, least, period = terms:match('%+(%d+)'), terms:match('~(%d+)'), terms:match('@(%d+)')
  -- A fence is the time of its grant, or later if the clock was set back.
  local granted = math.min(math.floor(tonumber(fence) / 1000), NOW)
  local opens = lost and delay and lost + delay or 0
  opens = math.max(opens, least and granted + least or 0)
  period = not claim and tonumber(period) or 0
  opens = math.max(opens, period > 0 and (math.floor(granted / period) + 1) * period or 0)
  if opens <= NOW then
    return false
  end
  rule = rule:match('^[*&^|=]%d+/?%d*') or ''
  local closed = mode .. 'f0' .. rule .. ':' .. RESERVED .. ':0:' .. fence
  redis.call('ZADD', HOLDERS, opens, closed)
  count_permits(step, closed, 1)
  keep(opens - NOW + KEPT)
  local first = redis.call('ZRANGE', QUEUE, 0, 0)[1]
  if first then
    push(first, first:match(CLIENT) or first, 'd ' .. HOLDERS)
  end
  return true
end
