-- Holders that share. Beside its grants, whose score is when the lease ends, the holders key keeps
-- members whose score is a number of another kind, above `FIRST`, where no lease ever ends: so that
-- they expire with the grants, and with nothing else. There is none for a lock that nobody shares.
--   `<waiter>`  the fence of its grant, for whoever asks again, among however many holders
--   `used`      how many permits are taken
--   `limit`     how many of them there are, or what number was declared; `declared` what it was
--               before somebody set another
--   `count`     what has been counted (see `post`)
local FIRST = 1e15

-- The holders live as long as the longest of them, or as what is to be remembered.
local function keep(ms)
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ms))
end

-- Takes a grant out of the holders, with what is kept of it; whether it was there.
local function drop(member)
  if redis.call('ZREM', KEYS[1], member) == 0 then
    return false
  end
  if member:byte() == 115 then -- s
    redis.call('ZREM', KEYS[1], member:match('^(.*):'))
    local permits = member:match('^s%a*%d+%*(%d+)')
    if permits then
      redis.call('ZINCRBY', KEYS[1], '-' .. permits, 'used')
    end
  end
  return true
end

-- A grant that was downgraded stands there as a shared one, and is spoken of as it was granted.
local function downgraded(member)
  return member:find('^x%a*d') and 's' .. member:sub(2)
end
local function as_granted(member)
  return member:find('^s%a*d') and 'x' .. member:sub(2) or member
end

-- What is taken, and of how many; where it is forgotten, it is as this waiter has declared.
local function permits_of(declared)
  local known = redis.call('ZMSCORE', KEYS[1], 'used', 'limit')
  if not known[2] then
    redis.call('ZADD', KEYS[1], FIRST, 'used', FIRST + declared, 'limit')
    keep(60000)
    return 0, tonumber(declared)
  end
  return known[1] - FIRST, known[2] - FIRST
end

-- Whether another number is known than this waiter has declared: that one; else nil.
local function differs(declared)
  local known = redis.call('ZMSCORE', KEYS[1], 'limit', 'declared')
  if not known[1] then
    permits_of(declared)
  elseif known[1] - FIRST ~= tonumber(declared)
      and (known[2] and known[2] - FIRST) ~= tonumber(declared) then
    return known[1] - FIRST
  end
end

-- May this waiter, who is not in the queue at the moment, enter beside those who hold it?
local passing = 0 -- how many more of a full group may
local asker -- the client who is being answered, so it is there, whether or not it listens
local function fits(who, channels)
  local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  if first[1] and tonumber(first[2]) < FIRST and (who:byte() == 120 or first[1]:byte() == 120) then
    return false -- x: alone
  end
  local kind, number, declared = who:match('^s%a*%d+([*&^])(%d+)/?(%d*)')
  if kind == '*' then
    local used, limit = permits_of(declared)
    return used + number <= limit
  elseif kind == '^' then
    local count = redis.call('ZSCORE', KEYS[1], 'count')
    return count and count - FIRST >= tonumber(number)
  elseif kind == '&' then
    local others = number - 1
    if passing > 0 then
      passing = passing - 1
      return true
    end
    if redis.call('ZCARD', KEYS[2]) >= others then
      --@include bury
      bury(channels)
    end
    passing = redis.call('ZCARD', KEYS[2]) >= others and others or 0
    return passing == others
  end
  return true
end
