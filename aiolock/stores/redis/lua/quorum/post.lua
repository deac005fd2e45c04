-- quorum/post: raises a count, or posts a value; notifies the waiters whose count is reached. They block no other
-- waiter, so each gets a push that looks like a vote, of which nothing is kept. The value has a key of its own, because
-- it may be long.
--
-- KEYS  1 votes  2 queue  3 last number  4 quorum config  5 value
-- ARGV  1 the count  2 the value, '' for none  3 how long to remember both (ms)
--       4 prefix of the clients' channels  5 not after (µs)
-- returns  the count
--@include quorum/names
local CHANNELS = ARGV[4]
--@include clock
--@include late
--@include keep
--@include quorum/count_reached
--@include quorum/with_rests

local too_late = late(ARGV[5])
if too_late then
  return too_late
end
local at_least, value, remembered = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local before = (redis.call('ZSCORE', VOTES, 'count') or COUNTERS) - COUNTERS
local count = math.max(before, at_least)
if value ~= '' and at_least >= before then
  redis.call('SET', KEYS[5], value, 'PX', math.max(remembered, redis.call('PTTL', KEYS[5])))
elseif redis.call('PTTL', KEYS[5]) < remembered then
  redis.call('PEXPIRE', KEYS[5], remembered)
end
redis.call('ZADD', VOTES, string.format('%.0f', COUNTERS + count), 'count')
keep(remembered)
return with_rests(count, count_reached(count, '-inf'))
