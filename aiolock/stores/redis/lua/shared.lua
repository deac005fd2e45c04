-- Holders that share. Beside its grants, whose score is when the lease ends, the holders key keeps
-- members whose score is a number of another kind, above `FIRST`, where no lease ever ends: so that
-- they expire with the grants, and with nothing else. There is none for a lock that nobody shares.
--   `<waiter>`  the fence of its grant, for whoever asks again, among however many holders
--   `used`      how many permits are taken
--   `limit`     how many of them there are, or what number was declared; `declared` another
--               that may be declared since somebody set it
--   `count`     what has been counted (see `post`)
--   `t:…`       what was counted once, so that it is not again
--   `!…`        what was given up, or is done, of which copies may still come: from FIRST + 10^12 on,
--               until when (see `tombstone`)

-- The holders live as long as the longest of them, or as what is to be remembered; `slack`: or for so
-- much less.
local function keep(ms, slack)
  if redis.call('PTTL', KEYS[1]) < ms - (slack or 0) then
    redis.call('PEXPIRE', KEYS[1], ms)
  end
end

-- What is taken, and of how many, once `permits_of` was asked; kept up to date by `count_permits`.
local used, limit
local function count_permits(who, sign)
  local permits = who:match('^s%a*%d+%*(%d+)')
  if permits then
    redis.call('ZINCRBY', KEYS[1], sign * permits, 'used')
    used = used and used + sign * permits
  end
end

-- What is written of a grant that is shared (see `mint`).
share = function(who, lease, fence, ends)
  redis.call('ZADD', KEYS[1], ends, who .. ':' .. fence, fence, who)
  keep(lease + 60000 + outlives(who), 1000)
  count_permits(who, 1)
end

-- Takes a grant out of the holders, with what is kept of it; whether it was there.
local function drop(member)
  if redis.call('ZREM', KEYS[1], member) == 0 then
    return false
  end
  if member:byte() == 115 then -- s
    redis.call('ZREM', KEYS[1], member:match('^(.*):'))
    count_permits(member, -1)
  end
  return true
end

-- A grant that was downgraded stands there as a shared one.
local function downgraded(member)
  return member:find('^x%a*d') and 's' .. member:sub(2)
end

-- What is taken, and of how many; where it is forgotten, as many as this waiter has declared.
-- `known`: what the holders key has of `used` and `limit`, where that was read already.
local function permits_of(declared, known)
  if not limit then
    known = known or redis.call('ZMSCORE', KEYS[1], 'used', 'limit')
    if known[2] then
      used, limit = known[1] - FIRST, known[2] - FIRST
    else
      used, limit = 0, tonumber(declared)
      redis.call('ZADD', KEYS[1], FIRST, 'used', FIRST + declared, 'limit')
      keep(60000)
    end
  end
  return used, limit
end

-- Whether another number is known than this waiter has declared: that one; else nil.
local function differs(declared, known)
  known = known or redis.call('ZMSCORE', KEYS[1], 'used', 'limit', 'declared')
  local _, now_known = permits_of(declared, known)
  local before = known[3] and known[3] - FIRST
  if now_known ~= tonumber(declared) and before ~= tonumber(declared) then
    return now_known
  end
end

-- Does this client still listen? pcall: an ACL may forbid to ask by now. `asker`, whom the script
-- answers, is there whether or not it listens.
local function listens(client, flags, channels)
  return client == asker or flags:find('b', 1, true)
      or redis.pcall('PUBSUB', 'NUMSUB', channels .. client)[2] ~= 0
end

-- May this waiter, who is not in the queue at the moment, enter beside those who hold it?
local passing = 0 -- how many more of a full group may
local function fits(who, channels)
  local kind, number, declared = who:match('^s%a*%d+([*&^])(%d+)/?(%d*)')
  if kind == '*' then
    permits_of(declared)
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
      --@include remove_dead
      remove_dead(channels)
    end
    passing = redis.call('ZCARD', KEYS[2]) >= others and others or 0
    return passing == others
  end
  local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  if not first[1] or tonumber(first[2]) >= FIRST then
    return true -- nobody holds it
  end
  return who:byte() == 115 and first[1]:byte() == 115 -- x: alone
end
