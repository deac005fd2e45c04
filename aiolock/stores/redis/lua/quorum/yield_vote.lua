-- quorum/yield_vote: takes exactly this vote back, and puts its waiter into the queue again. The first waiter there
-- gets the vote, under a new number even if that is the same waiter: otherwise a late copy of this command could take
-- away a vote that is counted again.
--
-- KEYS  1 votes  2 queue  3 last number  4 quorum config
-- ARGV  1 waiter  2 number of the vote  3 ticket  4 prefix of the clients' channels
-- returns  {1, number, lease (ms), now (µs)}  it has the vote again
--          {2, until (ms), place, now (µs)}   another waiter has it
--          {0, now (µs)}                      that vote has ended
--@include quorum/names
local CHANNELS = ARGV[4]
--@include clock
--@include quorum/new_vote_step
--@include quorum/first_vote
--@include quorum/vote_left
--@include quorum/vote_of
--@include quorum/vote_next
--@include quorum/with_rests

local waiter, number, ticket = ARGV[1], ARGV[2], ARGV[3]
local vote, score = vote_of(waiter .. ':' .. number .. ':')
if not vote then
  return {0, tonumber(STAMP)}
end
redis.call('ZREM', VOTES, vote, '@' .. vote)
redis.call('ZADD', QUEUE, ticket, waiter)
redis.call('PEXPIRE', QUEUE, QUEUE_LASTS)
local step = new_vote_step(waiter:match(CLIENT))
local fresh, claim = vote_next(step, vote:byte() == SHARED and vote_left(), waiter)
if fresh then
  return with_rests({1, tonumber(fresh), tonumber(claim), tonumber(STAMP)}, step.rest)
end
vote, score = first_vote()
local left = vote and math.floor(score) - NOW or 0
local place = redis.call('ZRANK', QUEUE, waiter) == 0 and 1 or 2
return with_rests({2, left, place, tonumber(STAMP)}, step.rest)
