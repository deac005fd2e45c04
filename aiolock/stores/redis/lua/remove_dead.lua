-- remove_dead(asker): removes the waiters of dead clients from the queue, when it matters how many wait.
-- Returns whether there were any. Its cost grows with the queue.
--@include listens
local function remove_dead(asker)
  local alive, found = {}, false
  for _, waiter in ipairs(redis.call('ZRANGE', QUEUE, 0, -1)) do
    local flags, client = waiter:match(FLAGS_CLIENT)
    if client and alive[client] == nil then
      alive[client] = listens(client, '', asker) and true or false
    end
    if not client or not alive[client] and not flags:find('b', 1, true) then
      redis.call('ZREM', QUEUE, waiter)
      found = true
    end
  end
  return found
end
