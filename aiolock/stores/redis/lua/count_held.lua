-- count_held(waiter, permits): counts these permits as held by the waiter's share; less than 0: no longer.
--@include account_of
--@include shares/rank_again
local function count_held(waiter, permits)
  local account, priority = account_of(waiter)
  if not account then
    return
  end
  local member = '%' .. account
  local held = tonumber(redis.call('ZINCRBY', HOLDERS, permits, member))
  -- Nobody else sees what the score is in between, if the share held nothing before, or holds nothing now.
  if permits > 0 and held < COUNTERS then
    redis.call('ZADD', HOLDERS, COUNTERS + permits, member)
  elseif permits < 0 and held <= COUNTERS then
    redis.call('ZREM', HOLDERS, member)
  end
  if SHARES then
    if permits < 0 then -- else `pay` follows, if anybody of the share waits
      rank_again(account, priority)
    end
  end
end
