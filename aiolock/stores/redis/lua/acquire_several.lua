-- acquire_several: newcomers of one client to one lock, as if each of them asked by itself, in order.
-- They are exclusive, and wait whatever the length of the queue.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 to 4 as of `acquire`  5… the waiters, in order  the last: not after (µs)
-- returns  {the reply to the first, that to the second, …}           each as `acquire` would reply
--          {the reply to the first, the ticket of the second}        the others are in the queue directly
--                                    behind the first, in order, each with a ticket higher by one
--@include names
local CHANNELS = ARGV[4]
--@include clock
--@include late
--@include grant_exclusive
--@include remove_dead_sample
--@include acquire_taken
--@include with_rest

local ttl, first = ARGV[1], ARGV[5]
local unpacked = table.unpack or unpack -- where Lua 5.4 has it, and where 5.1 does
local too_late = late(ARGV[#ARGV])
if too_late then
  return too_late
end
local replies, rests, ticket = {}, {}, nil -- of the first, where it is the last in the queue, or would be
if redis.call('EXISTS', HOLDERS, QUEUE) == 0 then
  ticket = tonumber(STAMP)
  replies[1] = grant_exclusive(first, ttl, 0, 0, ARGV[2]) .. ' ' .. ttl .. ' 0'
else
  replies[1], rests[1] = acquire_taken(first, 0, ttl, 0)
  if replies[1][1] == 2 and redis.call('ZRANGE', QUEUE, -1, -1)[1] == first then
    ticket = replies[1][2]
  end
end

-- All the others at once, if none of them is known already: only a late copy of the command finds any.
local held = redis.call('ZRANGE', HOLDERS, 0, 1)
if ticket and #held == 1 and held[1]:byte() == EXCLUSIVE then
  local holder, places = held[1]:match('^(.*):'), {}
  local known = false
  for i = 6, #ARGV - 1 do
    places[#places + 1] = ticket + i - 5
    places[#places + 1] = ARGV[i]
    known = known or ARGV[i] == holder
  end
  if not known and redis.call('ZADD', QUEUE, 'NX', unpacked(places)) == #ARGV - 6 then
    redis.call('PEXPIRE', QUEUE, QUEUE_LASTS)
    for looks = ticket + LOOKERS - ticket % LOOKERS, ticket + #ARGV - 6, LOOKERS do
      remove_dead_sample(looks, first:match(CLIENT))
    end
    return with_rest({replies[1], ticket + 1}, rests[1])
  end
end
for i = 6, #ARGV - 1 do
  replies[#replies + 1], rests[#rests + 1] = acquire_taken(ARGV[i], 0, ttl, 0)
end
return with_rest(replies, unpacked(rests))
