-- void(waiter): it came to stand in the queue before others. If the one directly behind it is of another
-- client, that client gets a push: it must no longer assume which of its own is before that waiter (see
-- `pass`).
--@include tell
local function void(waiter)
  local after = redis.call('ZRANK', QUEUE, waiter) + 1
  local behind = redis.call('ZRANGE', QUEUE, after, after)[1]
  local client = behind and behind:match(CLIENT)
  if client and client ~= waiter:match(CLIENT) then
    tell(behind, client, 'v ' .. behind .. ' ' .. HOLDERS)
  end
end
