-- hand_over(grant, head, asker, fence): grants the lock to the first of the queue, from an exclusive holder
-- with this grant and fence. Returns the reply; nil, with nothing done, if the first waiter shares, or does
-- not listen (see `advance`).
--@include clock
--@include grant_exclusive
--@include tell
local function hand_over(grant, head, asker, fence)
  local mode, _, claim, _, client = head:match(MODE_FLAGS_CLAIM_RULE_CLIENT)
  local ours = client == asker
  if mode ~= 'x' or not ours and redis.pcall('PUBSUB', 'NUMSUB', CHANNELS .. client)[2] == 0 then
    return nil
  end
  redis.call('ZREM', QUEUE, head) -- first: at maxmemory it is allowed, and after it so is ZADD
  local next_fence = grant_exclusive(head, claim, UNCONFIRMED, tonumber(fence))
  redis.call('ZREM', HOLDERS, grant)
  local push = 'g ' .. head .. ' ' .. next_fence .. ' ' .. claim .. ' ' .. STAMP .. ' ' .. HOLDERS
  if ours then
    return push
  end
  tell(head, client, push)
  return 1
end
