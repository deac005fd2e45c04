-- quorum/release: out of the line, and its vote is taken back, so that the next has it.
--
-- KEYS  1 votes  2 line  3 last number  4 marker
-- ARGV  1 prefix of the clients' channels  2 its vote only up to this number, '-1': whatever
--       3 waiter  4 a number that is to be known from now on
--       5 for how long it was inside (ms), '-1': never, '-2': it has lost that
--       6 until when older copies of its questions may come (µs), 0: none are on their way
-- returns  1 it had the vote  2 it stood in line  3 neither, but this server has lost its memory  0 neither
--          'g …' it had the vote, and the next is of the same client: the push, by a shorter way
--@include quorum/names
local CHANNELS = ARGV[1]
--@include clock
--@include give_up
--@include quorum/learn
--@include quorum/silent
--@include quorum/present_vote
--@include quorum/shut
--@include quorum/hand_vote
--@include quorum/release_shared

local upto, waiter, highest, entered, copies = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
-- First a write that is allowed at maxmemory: then so are all others.
local was_in_line = redis.call('ZREM', LINE, waiter) == 1
local vote, score = present_vote()
local number, granted
if vote and vote:sub(1, #waiter + 1) == waiter .. ':' then
  number, granted = vote:match('^(%d+):%-?%d+:(%d+)$', #waiter + 2) -- of VOTE: without looking for its waiter
end
if highest ~= '0' and highest ~= number then
  learn(highest, 0)
end
if copies ~= '0' then
  give_up(waiter, math.ceil(copies / 1000))
end
if vote and vote:byte() == SHARED then
  return release_shared(waiter, upto, entered, was_in_line)
elseif not number or upto ~= '-1' and number - upto > 0 then
  return was_in_line and 2 or not number and silent() and 3 or 0
end
redis.call('ZREM', VOTES, vote)
local lost = entered == -2 and NOW or nil
if entered ~= -1 and waiter:find(HAS_TERMS)
    and shut(waiter, number, granted, lost, score % 1 == UNCONFIRMED, not lost and entered) then
  return 1
elseif redis.call('EXISTS', LINE) == 0 then
  return 1 -- as `hand_vote` finds, which costs more to call
end
local _, _, push = hand_vote(waiter:match(CLIENT), nil, true)
return push or 1
