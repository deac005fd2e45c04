-- resize: another number of permits, for everybody. It may be declared from now on, and so may one
-- other: that of the caller or, where that is the new one, that of those before it.
-- Those at the head of the queue who fit now enter; who holds more than there are keeps them.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 what the caller declares  2 the limit  3 how long to remember it (ms)
--       4 prefix of the clients' channels  5 a token, the same in each copy of this command
--       6 not after (µs)
-- returns  the limit before

local asker -- none of those who wait
--@include clock
--@include late
--@include mint
--@include shared
--@include tombstone
-- A second copy must not undo what others have set since. What it is to answer stands behind the token.
local done = '!' .. ARGV[5] .. '='
local tombstones = string.format('(%.0f', FIRST + now)
for _, tombstone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], tombstones, FIRST + 1e13)) do
  if tombstone:sub(1, #done) == done then
    return tonumber(tombstone:sub(#done + 1))
  end
end
local _, before = permits_of(ARGV[1])
keep(tonumber(ARGV[3]))
-- Its client may send another copy, with a later limit, for some seconds.
local last = ARGV[6] == '0' and now or math.ceil(ARGV[6] / 1000)
give_up(ARGV[5] .. '=' .. string.format('%.0f', before), last + 10000)
-- Who declares the new number already speaks for those who declare the old one.
local other = ARGV[1] == ARGV[2] and before or tonumber(ARGV[1])
if other ~= tonumber(ARGV[2]) then
  redis.call('ZADD', KEYS[1], FIRST + other, 'declared')
end
redis.call('ZADD', KEYS[1], FIRST + ARGV[2], 'limit')
limit = tonumber(ARGV[2])
--@include advance
advance(ARGV[4])
return before
