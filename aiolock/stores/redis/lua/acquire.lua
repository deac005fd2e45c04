-- acquire: the lock, or else a place in its queue. Asking again is harmless and keeps the place.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 waiter  2 ticket: 0 a newcomer, > 0 its old place, -1 does not wait  3 ttl (ms)
--       4 how many may wait (0: any number)  5 prefix of the clients' channels
-- returns  {1, fence, lease (ms), now (µs), displaced}                              granted
--          {2, ticket, place, until the first lease ends (ms), now (µs), displaced} queued
--          {0, until the first lease ends (ms)}                                     busy
--          {3, how many wait}                                                       full
--          {4, for how long that is remembered (ms)}                                done, see `finish`
--          displaced: 1 when it had a place, by its ticket, and has it no more

local waiter, ticket = ARGV[1], tonumber(ARGV[2])
local displaced = ticket > 0 and 1 or 0

--@include clock
--@include mint
local function granted_to_us()
  return {1, tonumber(grant(waiter, ARGV[3])), tonumber(ARGV[3]), tonumber(stamp), displaced}
end

if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  return granted_to_us()
end

local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local until_end = first[2] and tonumber(first[2]) - now
if first[1] then
  if until_end > 0 then
    if first[1]:sub(1, #waiter + 1) == waiter .. ':' then
      return {1, tonumber(first[1]:match('%d+$')), until_end, tonumber(stamp), 0}
    elseif first[1]:sub(1, 7) == 'xfo0:-:' and waiter:find('^x%a*o') then
      return {4, until_end}
    elseif ticket == -1 then
      return {0, until_end}
    end
  else
    --@include reap
    until_end = reap(first[1], tonumber(first[2]))
    if until_end == 0 then
      first = {}
    elseif ticket == -1 then
      return {0, until_end}
    end
  end
end

local place -- where that is known without asking
if ticket >= 0 then
  local most, known = tonumber(ARGV[4]), nil
  if ticket > 0 or most > 0 then
    known = redis.call('ZSCORE', KEYS[2], waiter)
  end
  if ticket == 0 and not known then
    if most > 0 then
      local waiting = redis.call('ZCARD', KEYS[2])
      if waiting >= most then
        --@include bury
        waiting = waiting - bury(ARGV[5])
      end
      if waiting >= most then
        return {3, waiting}
      end
    end
    -- Two that arrive in one microsecond, or after the clock was set back, keep their order.
    local tail = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
    ticket = tonumber(stamp)
    if tail and tonumber(tail) >= ticket then
      ticket = tonumber(tail) + 1
    end
    if redis.call('ZADD', KEYS[2], 'NX', string.format('%.0f', ticket), waiter) == 1 then
      place = redis.call('ZCARD', KEYS[2])
    else -- a newcomer whose question was sent twice
      known = redis.call('ZSCORE', KEYS[2], waiter)
    end
  elseif not known then
    redis.call('ZADD', KEYS[2], string.format('%.0f', ticket), waiter)
  end
  if known then
    ticket, displaced = tonumber(known), 0
  end
  redis.call('PEXPIRE', KEYS[2], 300000)
end

if not first[1] then
  -- Nobody holds it, yet some wait: its holder is gone, and the one who asks wakes the next.
  --@include advance
  until_end = advance(ARGV[5], redis.call('ZPOPMIN', KEYS[2])[1], waiter)
  if not until_end or until_end == 0 then
    return granted_to_us()
  end
  place = nil
end

if ticket == -1 then
  return {0, until_end}
end
place = place or redis.call('ZRANK', KEYS[2], waiter) + 1
return {2, ticket, place, until_end, tonumber(stamp), displaced}
