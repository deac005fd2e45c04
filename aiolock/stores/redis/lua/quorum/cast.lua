-- cast(waiter, ticket, lease, proposal): votes for this waiter; returns the number of the vote, as text: the
-- proposal, or the next number, if that is higher or none is proposed ('0'). Where the last number is
-- forgotten, the ticket stands for it, which is a time as well. Not the clock of this server: one that is
-- years ahead would have all of them count from there.
--@include outlives
local function cast(waiter, ticket, lease, proposal)
  local number, last = proposal, nil
  local kept, remembered = lease + KEPT + outlives(waiter), lease + REMEMBERED
  if waiter:byte() == SHARED then -- beside it there may be votes with longer leases
    kept = math.max(kept, redis.call('PTTL', VOTES))
    remembered = math.max(remembered, redis.call('PTTL', LAST))
  end
  if proposal == '0' then
    last = redis.call('GET', LAST)
    number = last or string.format('%.0f', ticket - (waiter:match(PRIORITY_OF) or 0) * PRIORITY)
  else
    last = redis.call('SET', LAST, proposal, 'PX', remembered, 'GET')
  end
  if last and last - number >= 0 then
    number = string.format('%.0f', last + 1)
  end
  if number ~= proposal then
    redis.call('SET', LAST, number, 'PX', remembered)
  end
  local vote = waiter .. ':' .. number .. ':' .. ticket .. ':' .. string.format('%.0f', NOW)
  redis.call('ZADD', VOTES, NOW + lease + UNCONFIRMED, vote)
  redis.call('PEXPIRE', VOTES, kept)
  return number
end
