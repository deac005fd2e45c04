-- post: raises a count, or posts a value; waiters for a count that is now reached enter.
-- A count never falls. The value has a key of its own, because it may be long.
--
-- KEYS  1 holders  2 queue  3 fence  4 value
-- ARGV  1 '', or a token, for which one is added to the count, once  2 else the count
--       3 the number declared, 0 for none  4 the value  5 how long to remember all this (ms)
--       6 prefix of the clients' channels  7 not after (µs)
-- returns  the count; or less than 0: minus the number that is known, if another was declared
--@include names
local CHANNELS = ARGV[6]
--@include clock
--@include late
--@include new_step
--@include keep
--@include differs
--@include advance
--@include with_rest

local token, at_least, declared, value, remembered = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local step = new_step()
local too_late = late(ARGV[7])
if too_late then
  return too_late
elseif declared ~= '0' then
  local known = differs(step, declared)
  if known then
    return -known
  end
end
local before = (redis.call('ZSCORE', HOLDERS, 'count') or COUNTERS) - COUNTERS
local count = math.max(before, at_least)
if token ~= '' then
  count = before + redis.call('ZADD', HOLDERS, 'NX', COUNTERS, token)
end
if value ~= '' and at_least >= before then
  redis.call('SET', KEYS[4], value, 'PX', remembered)
end
redis.call('ZADD', HOLDERS, string.format('%.0f', COUNTERS + count), 'count')
keep(tonumber(remembered))
advance(step, nil, nil, nil, count > before)
return with_rest(count, step.rest)
