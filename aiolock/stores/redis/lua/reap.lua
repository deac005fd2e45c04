-- reap(): leases have ended. Their clients are gone or stuck, so their waiters leave the queue too
-- (one claim is lost to each, not one for every waiter), and a push tells them, should they still
-- listen: then they come back at their old places. Where a lease was not to be renewed its end means
-- nothing; but the claim of a pushed grant is to be confirmed all the same.
--@include close
local function reap()
  local ended = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES')
  local stuck
  for i = 1, #ended, 2 do
    local member, ends = ended[i], tonumber(ended[i + 1])
    local claim = ends % 1 == UNCONFIRMED
    drop(member)
    local flags, client = member:match('^%a(%a*)%d+[^:]*:([^:]+):')
    flags, client = flags or '', client or member
    floor = math.max(floor, tonumber(member:match('%d+$')) or 0)
    if claim or not flags:find('f', 1, true) then
      stuck = stuck or {}
      stuck[client] = true
    end
    if client ~= '-' then
      local lost = 'l ' .. member .. ' expired ' .. KEYS[1]
      redis.pcall('PUBLISH', ARGV[5] .. client, lost)
    end
    close(ARGV[5], member, math.floor(ends), claim)
  end
  if stuck then
    for _, other in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
      if stuck[other:match('^%a+%d+[^:]*:([^:]+):') or other] then
        redis.call('ZREM', KEYS[2], other)
      end
    end
  end
end
