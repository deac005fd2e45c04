-- void(waiter): it came to stand in the queue before others. Whoever stands directly behind it, of another
-- client, is told: that client must not take what is before its waiter for its own any more (see `pass`).
--@include tell
local function void(waiter)
  local after = redis.call('ZRANK', QUEUE, waiter) + 1
  local behind = redis.call('ZRANGE', QUEUE, after, after)[1]
  local client = behind and behind:match(CLIENT)
  if client and client ~= waiter:match(CLIENT) then
    tell(behind, client, 'v ' .. behind .. ' ' .. HOLDERS)
  end
end
