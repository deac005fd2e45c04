-- beside(): the rest of `acquire`, where nobody holds the lock alone: its holders may be gone, or may
-- share it with this waiter. Returns the answer, or nil where it stands in the line, or does not wait;
-- then `until_end` says when the first lease ends (ms), of which `holder`, and `place` is known or nil.
local function beside()
  local mine = downgraded(waiter) or waiter -- as it stands there where it holds
  local declared, of_ours, fence, tombstone = waiter:match('^s%a*%d+[*&^]%d+/(%d+)'), nil, nil, nil
  if declared then
    of_ours = redis.call('ZMSCORE', KEYS[1], 'used', 'limit', 'declared', waiter, '!' .. waiter)
    fence, tombstone = of_ours[4], of_ours[5]
  elseif first[3] or holder and (shared or tonumber(first[2]) >= FIRST) then
    of_ours = redis.call('ZMSCORE', KEYS[1], mine, '!' .. waiter)
    fence, tombstone = of_ours[1], of_ours[2]
  end
  if gave_up(tombstone) then
    return {0, 0}
  end
  local known = declared and differs(declared, of_ours)
  if known then
    return {5, known}
  end

  local reaped = holder and until_end <= 0
  if reaped then
    --@include reap
    reap()
    first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
    fence = (shared or mine ~= waiter) and redis.call('ZSCORE', KEYS[1], mine)
  end
  holder, until_end = nil, nil
  if first[1] and tonumber(first[2]) < FIRST then
    holder, until_end = first[1], first[2] - now
  end
  if fence then
    fence = string.format('%.0f', fence)
    local ends = redis.call('ZSCORE', KEYS[1], mine .. ':' .. fence)
    return {1, tonumber(fence), ends - now, tonumber(stamp), 0, is_claim(ends)}
  end

  local open = not holder or holder:byte() == 115 -- s: whoever holds it may share it
  local line = redis.call('EXISTS', KEYS[2]) == 1
  local rule = waiter:match('^s%a*%d+([*&^])')
  -- Who waits for a count is in nobody's way. And a party that completes its group, but does not wait,
  -- enters with those that stand in the line, which it need not join.
  local past = rule == '^'
    or rule == '&' and line and ticket == -1 and not redis.call('ZSCORE', KEYS[2], waiter)
  local enters = open and (past or not line)
  if enters and rule then
    enters = fits(waiter, ARGV[5])
  elseif enters then
    enters = shared or not holder
  end
  local completes = enters and line and rule == '&'
  if enters and not completes then
    if line and redis.call('ZREM', KEYS[2], waiter) == 1 then
      displaced = 0
    end
    return granted(grant(waiter, ARGV[3]))
  end
  local full = ticket >= 0 and stand_in_line()

  -- Others may fit since a lease has ended, or dead ones left, or the group is full, or this one is the
  -- first now. Else whoever is first has not fitted when it was last looked at, and holds the others back, unless its process is
  -- gone. (Those that wait for a count are let in by whoever counts, and each by itself.)
  local due = not holder or reaped or made_room or ahead or tonumber(ARGV[2]) > 0 or rule == '&'
  if open and line and not due and rule ~= '^' then
    local flags, client = redis.call('ZRANGE', KEYS[2], 0, 0)[1]:match('^%a(%a*)%d+[^:]*:([^:]+):')
    due = not client or not listens(client, flags, ARGV[5])
  end
  local ends
  if open and due and rule ~= '^' then
    --@include advance
    if completes then
      advance(ARGV[5])
      return granted(grant(waiter, ARGV[3]))
    end
    local fence_of_ours, _, first_end = advance(ARGV[5], nil, not holder, waiter, ARGV[3])
    if fence_of_ours then
      return granted(fence_of_ours)
    end
    ends, place = first_end, nil
    if ticket == -1 then
      if line and redis.call('EXISTS', KEYS[2]) == 0 and fits(waiter, ARGV[5]) then
        return granted(grant(waiter, ARGV[3])) -- whoever stood in the line was dead
      end
      holder = ends and redis.call('ZRANGE', KEYS[1], 0, 0)[1] or holder
    end
  end
  if full then
    return full
  end
  until_end = math.min(until_end or ends or 60000, ends or until_end or 60000)
end
