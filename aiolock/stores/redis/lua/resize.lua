-- resize: another number of permits, for everybody, also for those who go on declaring the old one.
-- Those at the head of the queue who fit now enter; who holds more than there are keeps them.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 what the caller declares  2 the limit  3 how long to remember it (ms)
--       4 prefix of the clients' channels
-- returns  the limit before

--@include clock
--@include shared
--@include mint
local _, before = permits_of(ARGV[1])
keep(tonumber(ARGV[3]))
redis.call('ZADD', KEYS[1], 'NX', FIRST + before, 'declared')
redis.call('ZADD', KEYS[1], FIRST + ARGV[2], 'limit')
--@include advance
advance(ARGV[4])
return before
