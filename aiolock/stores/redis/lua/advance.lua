-- advance(channels, head, asking): the lock is free, and its queue began with `head`, who is taken
-- out already; the first whose process listens gets it. Its first lease is only its claim: one that
-- is stuck costs no more than that. Returns when that lease ends (ms), 0 when it is the turn of
-- `asking` itself (who is granted in the reply), nil when nobody waits. With `ours`, the client who
-- is being answered: the push to it is the second result, and is not published.
local function advance(channels, head, asking, ours)
  while head do
    if head == asking then
      return 0
    end
    local flags, claim, client = head:match('^x(%a*)(%d+)[^:]*:([^:]+):')
    -- Counted first, then spoken to: what is published also reaches those who listen at a replica,
    -- where nobody counts them, and they would enter though they had been taken for dead. pcall:
    -- where an ACL forbids it by now, the waiter finds the grant when it asks again.
    if client == ours or flags:find('b', 1, true)
        or redis.pcall('PUBSUB', 'NUMSUB', channels .. client)[2] ~= 0 then
      local fence = grant(head, claim)
      local push = 'g ' .. head .. ' ' .. fence .. ' ' .. claim .. ' ' .. stamp .. ' ' .. KEYS[1]
      if client == ours then
        return tonumber(claim), push
      end
      redis.pcall('PUBLISH', channels .. client, push)
      return tonumber(claim)
    end
    head = redis.call('ZPOPMIN', KEYS[2])[1]
  end
end
