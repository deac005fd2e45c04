-- resize: another number of permits, for everybody. It may be declared from now on, and so may one
-- other: that of the caller or, where that is the new one, that of those before it.
-- Those at the head of the queue who fit now enter; who holds more than there are keeps them.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 what the caller declares  2 the limit  3 how long to remember it (ms)
--       4 prefix of the clients' channels
-- returns  the limit before

local asker -- none of those who wait
--@include clock
--@include mint
--@include shared
local _, before = permits_of(ARGV[1])
keep(tonumber(ARGV[3]))
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
