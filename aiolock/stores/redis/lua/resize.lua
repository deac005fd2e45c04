-- resize: sets the number of permits, for all clients. From now on waiters may declare it, and one other
-- number: that of the caller or, if that is the new one, the number before.
-- Waiters at the head of the queue that fit now enter; holders keep their permits, even if there are fewer.
--
-- KEYS  1 holders  2 queue  3 fence  4 line  5 shares
-- ARGV  1 the number that the caller declares  2 the limit  3 how long to remember it (ms)
--       4 prefix of the clients' channels  5 a token, the same in each copy of this command
--       6 not after (µs)
-- returns  the limit before
--@include names
--@include shares/index
local CHANNELS = ARGV[4]
--@include clock
--@include late
--@include new_step
--@include keep
--@include read_permits
--@include leave_tombstone
--@include resize_bucket
--@include advance
--@include with_rest

local declared, limit, remembered, token = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[5]
local too_late = late(ARGV[6])
if too_late then
  return too_late
end
-- A second copy must not undo what others have set since. The token's tombstone has the answer to it.
local done = '!' .. token .. '='
local after_now = string.format('(%.0f', COUNTERS + NOW)
for _, tombstone in ipairs(redis.call('ZRANGEBYSCORE', HOLDERS, after_now, COUNTERS + 1e13)) do
  if tombstone:sub(1, #done) == done then
    return tonumber(tombstone:sub(#done + 1))
  end
end
local step = new_step()
read_permits(step, declared)
local before = step.limit
keep(remembered)
-- Its client may send another copy, with a later limit, for some seconds.
local last = ARGV[6] == '0' and NOW or math.ceil(ARGV[6] / 1000)
leave_tombstone(token .. '=' .. string.format('%.0f', before), last + 10000)
-- A caller that already declares the new number speaks for those that declare the old one.
local other = declared == limit and before or declared
if other ~= limit then
  redis.call('ZADD', HOLDERS, COUNTERS + other, 'declared')
end
redis.call('ZADD', HOLDERS, COUNTERS + limit, 'limit')
if limit >= RATES then
  resize_bucket(step, declared, limit)
end
step.limit = limit
advance(step)
return with_rest(before, step.rest)
