-- quorum/renew: if this vote is still out, it lasts at least so long from now on, and the server learns a fence.
--
-- KEYS  1 votes  2 queue  3 last number  4 quorum config
-- ARGV  1 waiter  2 number of the vote  3 ttl (ms; 0: only answer whether it is out)  4 fence, 0 for none
--       5 1: its waiter is inside  0: it is not  6 not after (µs)
-- returns  1 it is out  0 it has ended
--@include quorum/names
--@include clock
--@include late
--@include closes_for
--@include quorum/learn
--@include quorum/vote_of

local too_late = late(ARGV[6])
if too_late then
  return too_late
end
local waiter, number, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local vote, score = vote_of(waiter .. ':' .. number .. ':')
if not vote or score <= NOW then
  return 0
elseif ttl > 0 then
  local mark = ARGV[5] == '1' and 0 or score % 1
  local ends = math.max(math.floor(score), NOW + ttl)
  -- PEXPIRE first: at maxmemory it is allowed, and after it so are the others.
  local kept = ends - NOW + KEPT + closes_for(waiter)
  if waiter:byte() == SHARED then
    kept = math.max(kept, redis.call('PTTL', VOTES)) -- as in `cast_vote`
  end
  redis.call('PEXPIRE', VOTES, kept)
  redis.call('ZADD', VOTES, 'XX', ends + mark, vote)
  if ARGV[4] ~= '0' then
    learn(ARGV[4], ttl, waiter:byte() == SHARED)
  end
end
return 1
