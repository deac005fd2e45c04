-- outlives(who): for how long at most, after the end of its lease, the grant of this waiter may close the
-- lock (ms): the holders are kept for as long, so that whoever asks first finds that it has ended, even if
-- nobody does for a day. Its terms say so, see `close`.
local function outlives(who)
  if who:match('^%a+%d+(.)') == ':' then
    return 0
  end
  local longest = 0
  for ms in who:match('^[^:]*'):gmatch('[+~@](%d+)') do
    longest = math.max(longest, tonumber(ms))
  end
  return longest
end
