-- post: something is counted, or a value is put up; those who wait for the count to be so high enter.
-- A count never falls. The value stands in a key of its own, for it may be long.
--
-- KEYS  1 holders  2 queue  3 fence  4 value
-- ARGV  1 '', or a token by which one is added to the count, once  2 else the count
--       3 the number declared, 0 for none  4 the value  5 how long to remember all this (ms)
--       6 prefix of the clients' channels  7 not after (µs)
-- returns  the count; or less than 0: the number that is known, where another was declared

local asker -- none of those who wait
--@include clock
--@include late
--@include mint
--@include shared
if ARGV[3] ~= '0' then
  local known = differs(ARGV[3])
  if known then
    return -known
  end
end
local before = (redis.call('ZSCORE', KEYS[1], 'count') or FIRST) - FIRST
local count = math.max(before, tonumber(ARGV[2]))
if ARGV[1] ~= '' then
  count = before + redis.call('ZADD', KEYS[1], 'NX', FIRST, ARGV[1])
end
if ARGV[4] ~= '' and tonumber(ARGV[2]) >= before then
  redis.call('SET', KEYS[4], ARGV[4], 'PX', ARGV[5])
end
redis.call('ZADD', KEYS[1], string.format('%.0f', FIRST + count), 'count')
keep(tonumber(ARGV[5]))
--@include advance
advance(ARGV[6], nil, nil, nil, nil, nil, count > before)
return count
