-- outlives(waiter): for how long at most, after the end of its lease, its grant may close the lock (ms): the
-- holders are kept for as long, so that whoever asks first finds that it has ended, even if nobody does
-- for a day. Its terms say so, see `close`.
local function outlives(waiter)
  local longest = 0
  if waiter:find(HAS_TERMS) then
    for ms in waiter:match('^[^:]*'):gmatch('[+~@](%d+)') do
      longest = math.max(longest, tonumber(ms))
    end
  end
  return longest
end
