-- quorum/reserve: if this vote is out, the server learns a fence, and answers whether other clients are in the queue:
-- for a client that may hand the lock off among its own waiters. Asking again is harmless, and so is a late copy.
--
-- KEYS  1 votes  2 queue  3 last number  4 quorum config
-- ARGV  1 waiter  2 number of the vote  3 fence
-- returns  0 it has ended  1 all waiters in the queue are of its client  2 there may be others
--@include quorum/names
--@include clock
--@include quorum/learn
--@include quorum/vote_of

local waiter, number = ARGV[1], ARGV[2]
local vote, score = vote_of(waiter .. ':' .. number .. ':')
if not vote or score <= NOW then
  return 0
end
learn(ARGV[3], math.floor(score) - NOW, waiter:byte() == SHARED)
if redis.call('ZCARD', QUEUE) > LOOKED_AT then
  return 2
end
local client = waiter:match(CLIENT)
for _, other in ipairs(redis.call('ZRANGE', QUEUE, 0, -1)) do
  if other:match(CLIENT) ~= client then
    return 2
  end
end
return 1
