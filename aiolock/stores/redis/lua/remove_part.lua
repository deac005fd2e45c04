-- remove_part(goes, behind): removes waiters from the queue, of those with a higher ticket than `behind` ('-inf':
-- of all) and of so many as one call looks at. `goes(waiter)` says whether it is one of them, and notes that.
-- Returns the last ticket among those that it has looked at, and how many waiters are up to there now; nil if
-- no others are behind them.
--@include shares/leave
local function remove_part(goes, behind)
  local found = redis.call('ZRANGEBYSCORE', QUEUE, '(' .. behind, '+inf', 'WITHSCORES', 'LIMIT', 0, PART + 1)
  local last, upto = math.min(#found, 2 * PART), nil
  if found[2 * PART + 1] then
    -- Waiters of a quorum may have the same ticket: then all of them are in the next part.
    while last > 2 and found[last] == found[last + 2] do
      last = last - 2
    end
    last = found[last] == found[last + 2] and 2 * PART or last
    upto = redis.call('ZRANK', QUEUE, found[last - 1]) + 1
  end
  for i = 1, last, 2 do
    if goes(found[i]) then
      if SHARES then
        if i <= math.max(PART / 2, 1) then -- more would take too long: `next_waiter` finds the others
          leave(found[i], found[i + 1])
        end
      end
      redis.call('ZREM', QUEUE, found[i])
      upto = upto and upto - 1
    end
  end
  if upto then
    return found[last], upto
  end
end
