-- close(member, lost): a grant has ended, at `lost` (ms) where its holder lost it. Its id may say for
-- how long nobody enters then (see `WaiterId`): `+` ms after a loss, `~` ms after the grant, and `@`
-- until the end of that period of so many ms in which it was granted. It is nobody's grant that
-- keeps the others out, which ends like any other. Returns how long it lasts (ms), 0 for not at all.
local function close(member, lost)
  local terms, fence = member:match('^x%a*%d+([+~@][^:]+):[^:]+:%d+:(%d+)$')
  if not terms then
    return 0
  end
  local delay, least, period = terms:match('%+(%d+)'), terms:match('~(%d+)'), terms:match('@(%d+)')
  -- A fence is the time of its grant, or later where the clock was set back.
  local granted = math.min(math.floor(tonumber(fence) / 1000), now)
  local opens = lost and delay and lost + delay or 0
  opens = math.max(opens, least and granted + least or 0)
  opens = math.max(opens, period and (math.floor(granted / period) + 1) * period or 0)
  if opens <= now then
    return 0
  end
  redis.call('ZADD', KEYS[1], opens, 'xf0:-:0:' .. fence)
  redis.call('PEXPIRE', KEYS[1], opens - now + 60000)
  return opens - now
end
