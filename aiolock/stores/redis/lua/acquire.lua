-- acquire: takes the lock, or a place in its queue. Asking again is harmless and keeps the place.
--
-- KEYS  1 holders  2 queue  3 fence, and if shares are used 4 line  5 shares
-- ARGV  1 ttl (ms)  2 for how long to keep its grant (ms): the ttl, KEPT, and what its terms add
--       3 how many may wait (0: any number)  4 prefix of the clients' channels  5 waiter
--       6 ticket: 0 a newcomer, > 0 its old place, -1 does not wait  7 not after (µs)
-- returns  '<fence> <lease (ms)> <displaced>'                       granted: no holders, no waiters
--          {1, fence, lease (ms), displaced, claim}                       granted
--          {2, ticket, place, until the first lease ends (ms), now (µs), displaced, before} queued
--          {0, until the first lease ends (ms), that grant, its process}            busy
--          {0, 0}                                  it gave up before: this is a late copy
--          {0, -1}                 leases have ended that are still to be reaped: it has to ask again
--          {3, how many wait}                                                       full
--          {4, for how long that is remembered (ms)}                                done, see `finish`
--          {5, the number that is known}       the waiter declares another number, see `differs`
--          displaced: 1 when it had a place, by its ticket, and has lost it
--          place: 1 for the first in the queue, else 2 or more
--          before: the waiter directly before it in the queue, or the grant that it waits for; only
--          for a newcomer, and only if that one is of its own client
--          claim: 1 when it was granted before, by a push, and has not confirmed that; else 0 or absent
--@include names
--@include shares/index
local CHANNELS = ARGV[4]
--@include clock
--@include late
--@include next_fence
--@include acquire_taken
--@include with_rest

local ttl, waiter, ticket = ARGV[1], ARGV[5], ARGV[6]
local too_late = late(ARGV[7])
if too_late then
  return too_late
elseif waiter:byte() ~= SHARED and redis.call('EXISTS', HOLDERS, QUEUE) == 0 then
  -- As `grant_exclusive`, in fewer steps. The reply is one text: a number in it costs as much as a small command.
  local fence = next_fence(0)
  redis.call('ZADD', HOLDERS, NOW + ttl, waiter .. ':' .. fence)
  redis.call('PEXPIRE', HOLDERS, ARGV[2])
  return fence .. ' ' .. ttl .. ((ticket == '0' or ticket == '-1') and ' 0' or ' 1')
end
return with_rest(acquire_taken(waiter, tonumber(ticket), ttl, tonumber(ARGV[3])))
