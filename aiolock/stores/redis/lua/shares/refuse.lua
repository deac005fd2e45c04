-- refuse(waiter, asker, most): how many wait of this waiter's share, if they are `most` or more and so it may not join
-- them; nil if it may. If they are as many, the dead among some of them leave first, as in `remove_dead`.
--@include account_of
--@include listens
--@include shares/count_waiters
--@include shares/leave
local function refuse(waiter, asker, most)
  local account = account_of(waiter)
  local waiting, before = count_waiters(account)
  if waiting < most then
    return nil
  end
  local first, last = 0, waiting - 1
  if waiting > CHECKS then
    first = STAMP % (waiting + CHECKS - 1) - CHECKS + 1
    first, last = math.max(first, 0), math.min(first + CHECKS, waiting) - 1
  end
  local alive = {}
  for _, entry in ipairs(redis.pcall('ZRANGE', LINE, before + first, before + last)) do
    local other = entry:sub(#account + 19)
    local flags, client = other:match(FLAGS_CLIENT)
    if client and alive[client] == nil then
      alive[client] = listens(client, '', asker) and true or false
    end
    if not client or not alive[client] and not flags:find('b', 1, true) then
      leave(other)
      redis.call('ZREM', QUEUE, other)
      redis.pcall('ZREM', LINE, entry) -- should it have been in no queue
    end
  end
  waiting = count_waiters(account)
  return waiting >= most and waiting or nil
end
