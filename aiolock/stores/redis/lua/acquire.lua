-- acquire: the lock, or else a place in its queue. Asking again is harmless and keeps the place.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 waiter  2 ticket: 0 a newcomer, > 0 its old place, -1 does not wait  3 ttl (ms)
--       4 how many may wait (0: any number)  5 prefix of the clients' channels  6 not after (µs)
-- returns  {1, fence, lease (ms), now (µs), displaced, claim}                       granted
--          {2, ticket, place, until the first lease ends (ms), now (µs), displaced} queued
--          {0, until the first lease ends (ms), that grant, its process}            busy
--          {0, 0}                                                given up before: this is a late copy
--          {3, how many wait}                                                       full
--          {4, for how long that is remembered (ms)}                                done, see `finish`
--          {5, the number that is known}                  another was declared for it, see `shared`
--          displaced: 1 when it had a place, by its ticket, and has it no more
--          claim: 1 when it was granted before, by a push, and has not confirmed that; 0 or nothing else

local PRIORITY = 1e14 -- how much higher a ticket is for each step of `Form.priority`
local waiter, ticket = ARGV[1], tonumber(ARGV[2])
local displaced, shared = ticket > 0 and 1 or 0, waiter:byte() == 115

--@include clock
--@include late
--@include mint
local function granted(fence)
  return {1, tonumber(fence), tonumber(ARGV[3]), tonumber(stamp), displaced}
end

if not shared and redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  return granted(grant(waiter, ARGV[3]))
end

local asker = waiter:match(':([^:]+):')
local place -- where that is known without asking
local ahead -- it came before some of those that wait
local made_room -- some of those that waited were dead, and those behind them may fit
local function stand_in_line() -- returns the answer where the line is full
  local most, known = tonumber(ARGV[4]), nil
  if ticket > 0 or most > 0 then
    known = redis.call('ZSCORE', KEYS[2], waiter)
  end
  if ticket == 0 and not known then
    if most > 0 then
      local waiting = redis.call('ZCARD', KEYS[2])
      if waiting >= most then
        --@include remove_dead
        made_room = remove_dead(ARGV[5])
        waiting = redis.call('ZCARD', KEYS[2])
      end
      if waiting >= most then
        return {3, waiting}
      end
    end
    local tail = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
    ticket = tonumber(stamp)
    if waiter:find('!', 1, true) then
      ticket = ticket + PRIORITY * (tonumber(waiter:match('!(%-?%d+)')) or 0)
    end
    if tail and tonumber(tail) >= ticket then
      -- Two that arrive in one microsecond, or after the clock was set back, keep their order.
      local most = string.format('(%.0f', ticket + PRIORITY / 2)
      local before = redis.call('ZRANGE', KEYS[2], most, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
      ticket = math.max(ticket, tonumber(before or 0) + 1)
      ahead = ticket <= tonumber(tail)
    end
    if redis.call('ZADD', KEYS[2], 'NX', string.format('%.0f', ticket), waiter) == 1 then
      place = not ahead and redis.call('ZCARD', KEYS[2]) or nil
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

-- Whether the waiter was given up is seldom to be asked: only where there is more than one that holds
-- it alone. One that shares it asks for more in any case.
local function gave_up(score)
  return score and score - FIRST > now
end

local function is_claim(ends)
  return ends % 1 == UNCONFIRMED and 1 or 0
end

local first = redis.call('ZRANGE', KEYS[1], 0, shared and 0 or 1, 'WITHSCORES')
local holder, until_end = first[1], first[2] and tonumber(first[2]) - now
local taken = not shared and holder and until_end > 0 and holder:byte() == 120 -- x, by one alone
if taken then
  if first[3] and gave_up(redis.call('ZSCORE', KEYS[1], '!' .. waiter)) then
    return {0, 0}
  elseif holder:sub(1, #waiter + 1) == waiter .. ':' then
    return {1, tonumber(holder:match('%d+$')), until_end, tonumber(stamp), 0, is_claim(first[2])}
  elseif holder:sub(1, 7) == 'xfo0:-:' and waiter:find('^x%a*o') then
    return {4, until_end}
  end
  local full = ticket >= 0 and stand_in_line()
  if full then
    return full
  end
else
  --@include shared
  --@include beside
  local answer = beside()
  if answer then
    return answer
  end
end

if ticket == -1 then
  local client = holder and holder:match('^%a+%d+[^:]*:([^:]+):')
  if not client or client == '-' then
    return {0, until_end}
  end
  local key = ARGV[5]:gsub('push:$', 'client:') .. client
  local says = redis.pcall('GET', key) -- pcall: it is in another slot than our keys
  return {0, until_end, holder, type(says) == 'string' and says or ''}
end
place = place or redis.call('ZRANK', KEYS[2], waiter) + 1
return {2, ticket, place, until_end, tonumber(stamp), displaced}
