-- push_order_unknown(waiter): this waiter was put into the queue before others. If the one directly behind it is of
-- another client, that client gets a push: it must no longer assume that a waiter or holder of its own is before it,
-- and so makes no local hand-off there (see `report_handoff`).
--@include push
local function push_order_unknown(waiter)
  local after = redis.call('ZRANK', QUEUE, waiter) + 1
  local behind = redis.call('ZRANGE', QUEUE, after, after)[1]
  local client = behind and behind:match(CLIENT)
  if client and client ~= waiter:match(CLIENT) then
    push(behind, client, 'v ' .. behind .. ' ' .. HOLDERS)
  end
end
