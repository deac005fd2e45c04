-- refuse(waiter, asker, most): how many wait of this waiter's share, if they are `most` or more and so it may not join
-- them; nil if it may. If they are as many, the dead among some of them leave first, as in `remove_dead`; and what is
-- left of those that a script without these keys has removed from the queue.
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
    local other, ticket = entry:sub(#account + 19), tonumber(entry:sub(#account + 2, #account + 17))
    local flags, client = other:match(FLAGS_CLIENT)
    if client and alive[client] == nil then
      alive[client] = listens(client, '', asker) and true or false
    end
    local dead = not client or not alive[client] and not flags:find('b', 1, true)
    if dead or tonumber(redis.call('ZSCORE', QUEUE, other) or 0) ~= ticket then
      leave(other, ticket)
      redis.pcall('ZREM', LINE, entry) -- should it be none of ours
    end
    if dead then
      redis.call('ZREM', QUEUE, other)
    end
  end
  waiting = count_waiters(account)
  return waiting >= most and waiting or nil
end
