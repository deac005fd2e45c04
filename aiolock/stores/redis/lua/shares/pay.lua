-- pay(waiter, ticket): this waiter has left the queue, where it had that ticket, and was granted the lock: its share
-- pays, if anybody of its priority is left that waits.
--@include account_of
--@include shares/read_account
--@include shares/write_account
--@include shares/look
--@include shares/others_wait
--@include shares/forget_starts
local function pay(waiter, ticket)
  local account, priority, weight, permits = account_of(waiter)
  local number = math.max(1, tonumber(waiter:match(COSTS) or 1))
  if not account then
    return
  end
  redis.pcall('ZREM', LINE, account .. string.format(':%016.0f:', ticket) .. waiter)
  local a = read_account(account, priority, permits)
  if not look(a) and not others_wait(a) then
    forget_starts(a)
    return
  end
  local moved = a.start > a.now
  if moved then
    a.now = a.start
    -- Some are no longer ahead. Two at most: each grant makes one at most.
    local from = priority * STARTS - LOWEST
    local gone = redis.pcall('ZRANGE', SHARES, from, from + a.now, 'BYSCORE', 'LIMIT', 0, 2)
    for _, member in ipairs(gone) do
      redis.pcall('ZREM', SHARES, member)
      a.count, a.ahead = a.count - 1, a.ahead and member ~= '-' .. account
    end
  end
  a.start = a.now + math.max(1, math.floor(number * COST * 1000 / weight))
  if a.start >= STARTS then
    redis.pcall('ZREMRANGEBYSCORE', SHARES, '-inf', '+inf') -- begin anew, as those that wait ask again
    return
  end
  write_account(a, moved)
end
