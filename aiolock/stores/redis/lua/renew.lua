-- renew: many leases in one call; each that still holds ends ttl from now.
--
-- KEYS  holders, one key for each grant
-- ARGV  2i-1 the grant (waiter:fence)  2i ttl (ms; 0: only answer whether it still holds)
--       the last: not after (µs)
-- returns  for each: 1 still a holder  0 no longer  -1 not known, for its key is not of ours
--@include names
--@include clock
--@include late
--@include as_shared
--@include closes_for

local too_late = late(ARGV[#ARGV])
if too_late then
  return too_late
end
local held = {}
for i, holders in ipairs(KEYS) do
  local grant, ttl = ARGV[2 * i - 1], tonumber(ARGV[2 * i])
  local ends = redis.pcall('ZSCORE', holders, grant) -- pcall: the others have their answer
  if not ends and as_shared(grant) then
    grant = as_shared(grant)
    ends = redis.call('ZSCORE', holders, grant)
  end
  if type(ends) == 'table' then
    held[i] = -1
  elseif not ends or tonumber(ends) <= NOW then
    held[i] = 0
  else
    held[i] = 1
    if ttl > 0 then
      local kept = ttl + KEPT + closes_for(grant)
      if grant:byte() == SHARED then -- others may hold it for longer
        kept = math.max(kept, redis.call('PTTL', holders))
      end
      -- PEXPIRE first: at maxmemory it is allowed, and after it so is ZADD.
      redis.call('PEXPIRE', holders, kept)
      redis.call('ZADD', holders, 'XX', NOW + ttl, grant)
    end
  end
end
return held
