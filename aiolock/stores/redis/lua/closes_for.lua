-- closes_for(waiter): for how long at most, after the end of its lease, its grant may keep the lock closed (ms), by
-- its terms: see `close`. The holders are kept for as long, so that the next waiter finds that the lease has ended,
-- even if there is none for a day.
local function closes_for(waiter)
  local longest = 0
  if waiter:find(HAS_TERMS) then
    for ms in waiter:match('^[^:]*'):gmatch('[+~@](%d+)') do
      longest = math.max(longest, tonumber(ms))
    end
  end
  return longest
end
