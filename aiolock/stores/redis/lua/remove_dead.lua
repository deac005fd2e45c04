-- remove_dead(asker, number, most): removes the waiters of dead clients from the queue, when it matters how many
-- wait: of `most` that stand side by side, where the number says, if there are more (see `checked` of the state
-- machine); nil: of all. Returns whether there were any.
--@include listens
--@include shares/leave
local function remove_dead(asker, number, most)
  local first, last = 0, -1
  if most then
    local waiters = redis.call('ZCARD', QUEUE)
    if waiters > most then
      first = number % (waiters + most - 1) - most + 1
      first, last = math.max(first, 0), first + most - 1
    end
  end
  local alive, found = {}, false
  for _, waiter in ipairs(redis.call('ZRANGE', QUEUE, first, last)) do
    local flags, client = waiter:match(FLAGS_CLIENT)
    if client and alive[client] == nil then
      alive[client] = listens(client, '', asker) and true or false
    end
    if not client or not alive[client] and not flags:find('b', 1, true) then
      if SHARES then
        leave(waiter)
      end
      redis.call('ZREM', QUEUE, waiter)
      found = true
    end
  end
  return found
end
