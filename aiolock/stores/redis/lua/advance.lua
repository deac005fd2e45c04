-- advance(channels, head, free): those at the head of the queue enter, for as long as they fit;
-- `head` is its first, who is taken out already, with its ticket, or nil: see who is. `free`: nobody
-- holds the lock. Who enters must be of a process that listens. The first lease is only the claim:
-- one that is stuck costs no more than that.
--
-- Where it is the turn of `asking`, who is answered now, it gets `ttl`; and the first push to the
-- client `ours`, who is answered too, is for the reply. Returns the fence of the one and the push to
-- the other, and when the first of the leases ends (ms), nil when nobody has entered.
--
-- Whoever does not fit holds back those behind it. But where something was `counted`, one that waits
-- for a higher count is passed over, for those behind it may wait for less; unless all of them have
-- declared the same.
local function advance(channels, head, free, asking, ttl, ours, counted)
  local fence_of_asking, push_to_ours, first_end
  local back -- those that do not fit: to where they stood
  head = head or redis.call('ZPOPMIN', KEYS[2])
  while head[1] do
    local who = head[1]
    local mode, flags, claim, rule, client = who:match('^(%a)(%a*)(%d+)([^:]?)[^:]*:([^:]+):')
    -- Counted first, then spoken to: what is published also reaches those who listen at a replica,
    -- where nobody counts them, and they would enter though they had been taken for dead. pcall:
    -- where an ACL forbids it by now, the waiter finds the grant when it asks again.
    local there = client and listens(client, flags, channels)
    if there and not (free and (rule == '' or mode == 'x')) and not fits(who, channels) then
      back = back or {}
      back[#back + 1] = head
      if not counted or rule ~= '^' or who:find('^%a+%d+%^%d+/') then
        break
      end
    elseif there then
      free = false
      if who == asking then
        fence_of_asking, claim = grant(who, ttl), ttl
      else
        local push = hand_over(who, claim)
        if client == ours then
          push_to_ours, ours = push, nil
        else
          redis.pcall('PUBLISH', channels .. client, push)
        end
      end
      first_end = math.min(first_end or math.huge, tonumber(claim))
      if mode ~= 's' or used and used >= limit then
        break -- nobody fits beside it, or all permits are taken
      end
    end
    head = redis.call('ZPOPMIN', KEYS[2])
  end
  if back then
    for _, place in ipairs(back) do
      redis.call('ZADD', KEYS[2], place[2], place[1])
    end
    redis.call('PEXPIRE', KEYS[2], 300000)
  end
  return fence_of_asking, push_to_ours, first_end
end
