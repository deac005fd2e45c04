-- advance(channels, asking): the lock is free; the first in the queue whose process listens gets it.
-- Its first lease is only its claim: one that is stuck costs no more than that. Returns when that
-- lease ends (ms), 0 when it is the turn of `asking` itself (who is granted in the reply), nil when
-- nobody waits.
local function advance(channels, asking)
  while true do
    local head = redis.call('ZPOPMIN', KEYS[2])[1]
    if not head then
      return nil
    elseif head == asking then
      return 0
    end
    local flags, claim, client = head:match('^x(%a*)(%d+):([^:]+):')
    -- Counted first, then spoken to: what is published also reaches those who listen at a replica,
    -- where nobody counts them, and they would enter though they had been taken for dead. pcall:
    -- where an ACL forbids it by now, the waiter finds the grant when it asks again.
    local heard = redis.pcall('PUBSUB', 'NUMSUB', channels .. client)[2]
    if heard ~= 0 or flags:find('b', 1, true) then
      local fence = grant(head, claim)
      local push = 'g ' .. head .. ' ' .. fence .. ' ' .. claim .. ' ' .. stamp .. ' ' .. KEYS[1]
      redis.pcall('PUBLISH', channels .. client, push)
      return tonumber(claim)
    end
  end
end
