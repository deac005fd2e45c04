-- beside(): the rest of `acquire`, where nobody holds the lock alone: its holders may be gone, or may
-- share it with this waiter. Returns the answer, or nil where it stands in the line, or does not wait;
-- then `until_end` says when the first lease ends (ms), and `place` is known or nil.
local function beside()
  local of_ours, declared = nil, waiter:match('^s%a*%d+[*&^]%d+/(%d+)')
  if declared then
    of_ours = redis.call('ZMSCORE', KEYS[1], 'used', 'limit', 'declared', waiter)
    local known = differs(declared, of_ours)
    if known then
      return {5, known}
    end
  end

  local reaped = holder and until_end <= 0
  if reaped then
    --@include reap
    reap()
    of_ours = nil
    first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  end
  holder, until_end = nil, nil
  if first[1] and tonumber(first[2]) < FIRST then
    holder, until_end = first[1], first[2] - now
  end
  local fence = of_ours and of_ours[4]
  if shared and holder and not of_ours then
    fence = redis.call('ZSCORE', KEYS[1], waiter)
  end
  if fence then
    fence = string.format('%.0f', fence)
    local ends = redis.call('ZSCORE', KEYS[1], waiter .. ':' .. fence)
    return {1, tonumber(fence), ends - now, tonumber(stamp), 0}
  end

  local open = not holder or holder:byte() == 115 -- s: whoever holds it may share it
  local line = redis.call('EXISTS', KEYS[2]) == 1
  local plain = not waiter:find('^%a+%d+[*&^]')
  if open and not line and (plain and (shared or not holder) or fits(waiter, ARGV[5])) then
    return granted(grant(waiter, ARGV[3]))
  end
  local full = ticket >= 0 and stand_in_line()
  if full then
    return full
  end

  -- Others may fit since a lease has ended, or the group is full. Else whoever is first has not fitted
  -- when it was last looked at, and holds the others back, unless its process is gone.
  local due = not holder or reaped or ARGV[2] > '0' or waiter:find('&', 1, true)
  if open and line and not due then
    local flags, client = redis.call('ZRANGE', KEYS[2], 0, 0)[1]:match('^%a(%a*)%d+[^:]*:([^:]+):')
    due = not listens(client, flags, ARGV[5])
  end
  local ends
  if open and due then
    --@include advance
    local fence_of_ours, _, first_end = advance(ARGV[5], nil, not holder, waiter, ARGV[3])
    if fence_of_ours then
      return granted(fence_of_ours)
    end
    ends, place = first_end, nil
  end
  until_end = math.min(until_end or ends or 60000, ends or until_end or 60000)
end
