-- quorum/vote: gives this waiter a vote, or a place in the queue. Asking again is harmless, and keeps both.
--
-- KEYS  1 votes  2 queue  3 last number  4 quorum config
-- ARGV  1 prefix of the clients' channels  2 ttl (ms)
--       3 for how long a vote that is not shared is kept (ms), and 4 its number: see `cast_vote`
--       5 how many may be in the queue (0: any number)  6 1: it waits  0: it does not
--       7 waiter  8 ticket  9 the number that is proposed, '0' for none  10 not after (µs)
-- returns  '<number> <lease (ms)> <now (µs)>'               it has the vote: there was no vote and no waiter
--          {1, number, lease (ms), now (µs)}                it has the vote
--          {2, until (ms), place, now (µs)}                 another waiter has it; place: 1 first, else 2
--          {2, until (ms), 0, now (µs), that vote, its process}  the same, for a waiter that does not wait
--          {2, -1, 0, now (µs)}                             ended votes, or dead waiters, are still to be removed:
--                                                           a waiter that does not wait has to ask again
--          {3, how many wait, now (µs)}                     full
--          {0, now (µs)}                                    it gave up before: this is a late copy
--          {4, for how long (ms), now (µs)}                 it does not vote, see `not_voting`
--          {5, fence, for how long (ms), now (µs)}          its work is done already
--@include quorum/names
local CHANNELS = ARGV[1]
--@include clock
--@include late
--@include quorum/not_voting
--@include quorum/cast_vote
--@include quorum/vote_taken

local ttl, waiter, ticket, proposal = ARGV[2], ARGV[7], ARGV[8], ARGV[9]
local too_late = late(ARGV[10])
if too_late then
  return too_late
end
local left = not_voting()
if left then
  return {4, left, tonumber(STAMP)}
elseif waiter:byte() ~= SHARED and redis.call('EXISTS', VOTES, QUEUE) == 0 then
  return cast_vote(waiter, ticket, ttl, proposal, ARGV[3], ARGV[4]) .. ' ' .. ttl .. ' ' .. STAMP
end
return vote_taken(waiter, ticket, ttl, proposal, tonumber(ARGV[5]), ARGV[6] == '1')
