-- hand_off(grant, head, asker, fence): the most frequent case of `advance`: an exclusive holder with this grant and
-- fence releases the lock, and the first waiter in the queue gets it, or whoever is next by its share (%). Returns the
-- reply. If that waiter shares the lock, or its client does not listen, or it is not known, it does nothing and returns
-- nil.
--@include clock
--@include grant_exclusive
--@include push
--@include shares/next_waiter
--@include shares/pay
local function hand_off(grant, head, asker, fence)
  local share, ticket = head:find('%', 1, true), nil
  if SHARES then
    head, ticket = next_waiter(head)
  end
  local mode, _, claim, more, client = head:match(MODE_FLAGS_CLAIM_RULE_CLIENT)
  local ours = client == asker
  if mode ~= 'x' or share and not ticket or not ours and redis.pcall('PUBSUB', 'NUMSUB', CHANNELS .. client)[2] == 0 then
    return nil
  end
  redis.call('ZREM', QUEUE, head) -- first: at maxmemory it is allowed, and after it so is ZADD
  local kept = more == '' and claim + KEPT -- it has no terms
  local next_fence = grant_exclusive(head, claim, UNCONFIRMED, tonumber(fence), kept)
  redis.call('ZREM', HOLDERS, grant)
  if SHARES then
    if share then
      pay(head, ticket)
    end
  end
  local message = 'g ' .. head .. ' ' .. next_fence .. ' ' .. claim .. ' ' .. STAMP .. ' ' .. HOLDERS
  if ours then
    return message
  end
  push(head, client, message)
  return 1
end
