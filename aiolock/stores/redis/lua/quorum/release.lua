-- quorum/release: removes a waiter from the queue, and takes its vote back for the next waiter.
--
-- KEYS  1 votes  2 queue  3 last number  4 quorum config
-- ARGV  1 prefix of the clients' channels  2 its vote only up to this number, '-1': with any number
--       3 1: the waiter is exclusive and has no terms that may close the lock  0: it may be otherwise
--       4 waiter  5 a number to learn
--       6 for how long it was inside (ms), '-1': never, '-2': it has lost that
--       7 until when older copies of its requests may come (µs), 0: none are on their way
-- returns  1 it had the vote  2 it was queued  3 neither, but this server has lost its memory  0 neither
--          'g …' it had the vote, and the next waiter is of the same client: its push, sent with the reply
--@include quorum/names
local CHANNELS = ARGV[1]
--@include quorum/release_vote

local upto, waiter, highest, copies = ARGV[2], ARGV[4], ARGV[5], ARGV[7]
-- The most frequent case first: no waiters, and a known number. A waiter with the vote is not in the queue.
if ARGV[3] == '1' and upto == '-1' and copies == '0' and redis.call('EXISTS', QUEUE) == 0 then
  local vote, its = redis.call('ZRANGE', VOTES, 0, 0)[1], waiter .. ':' .. highest .. ':'
  if vote and vote:sub(1, #its) == its then
    redis.call('ZREM', VOTES, vote)
    return 1
  end
end
return release_vote(waiter, upto, highest, tonumber(ARGV[6]), copies)
