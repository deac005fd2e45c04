-- recount(): counts anew how many permits each share holds, if that was last done a minute ago: clients of an earlier
-- version count none, neither of the grants that they make nor of those that they end. Not if there are very many.
--@include account_of
--@include shares/rank_again
local function recount()
  local last = redis.call('ZSCORE', HOLDERS, '%')
  if last and NOW - (last - COUNTERS) * 1000 < KEEP_ALIVE then
    return
  end
  redis.call('ZADD', HOLDERS, COUNTERS + math.floor(NOW / 1000), '%')
  local grants, held = redis.call('ZRANGEBYSCORE', HOLDERS, '-inf', COUNTERS - 1, 'LIMIT', 0, CHECKS_IF_FULL), {}
  if #grants == CHECKS_IF_FULL then
    return
  end
  for _, grant in ipairs(grants) do
    local account, _, _, permits = account_of(grant)
    if account then
      held['%' .. account] = (held['%' .. account] or 0) + permits
    end
  end
  local wrong = {}
  local counted = redis.call('ZRANGEBYSCORE', HOLDERS, COUNTERS, COUNTERS + 1000000000, 'WITHSCORES')
  for i = 1, #counted, 2 do
    local member, permits = counted[i], counted[i + 1] - COUNTERS
    if #member > 1 and member:byte() == 37 and held[member] ~= permits then
      wrong[member] = held[member] or 0
    end
    held[member] = nil
  end
  for _, accounts in ipairs({held, wrong}) do -- first those of which nothing was known
    for member, permits in pairs(accounts) do
      if permits > 0 then
        redis.call('ZADD', HOLDERS, COUNTERS + permits, member)
      else
        redis.call('ZREM', HOLDERS, member)
      end
      rank_again(member:sub(2), tonumber(member:match('^%%(%-?%d+)')))
    end
  end
end
