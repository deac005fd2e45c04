-- renew: many leases in one call; each that still holds ends ttl from now.
--
-- KEYS  holders, one key for each grant
-- ARGV  2i-1 the grant (waiter:fence)  2i ttl (ms; 0: only say whether it still holds)
--       the last: not after (µs)
-- returns  for each: 1 still a holder  0 not any more

--@include clock
--@include late
--@include outlives
local held = {}
for i, holders in ipairs(KEYS) do
  local grant, ttl = ARGV[2 * i - 1], tonumber(ARGV[2 * i])
  local ends = redis.call('ZSCORE', holders, grant)
  if not ends and grant:find('^x%a*d') then -- downgraded, it stands there as a shared one
    grant = 's' .. grant:sub(2)
    ends = redis.call('ZSCORE', holders, grant)
  end
  if not ends or tonumber(ends) <= now then
    held[i] = 0
  else
    held[i] = 1
    if ttl > 0 then
      local keep = ttl + 60000 + outlives(grant)
      if grant:byte() == 115 then -- s: others may hold it for longer
        keep = math.max(keep, redis.call('PTTL', holders))
      end
      -- PEXPIRE first: at maxmemory it is allowed, and after it so is ZADD.
      redis.call('PEXPIRE', holders, keep)
      redis.call('ZADD', holders, 'XX', now + ttl, grant)
    end
  end
end
return held
