-- release: removes a waiter from the holders or the queue, and grants the lock to the next.
-- It is one script for release, timeout and cancellation, so "given up while being granted" is one
-- decision. The first write (ZREM) is allowed at maxmemory, and after it all the others. A grant is
-- removed after the next was added, see `with_placeholder`.
--
-- KEYS  1 holders  2 queue  3 fence, and if shares are used 4 line  5 shares
-- ARGV  1 waiter  2 fence of the grant (0: whatever the waiter is now)  3 prefix of the channels
--       4 1: its terms may close the lock now  2: also those for a loss, as its lease has ended at its client
--         0: it has no terms, or the grant was not entered
--       5 until when older copies of its `acquire` may come (µs), 0: none are on their way
-- returns  1 it was a holder  2 it was queued  0 neither
--          'g …' it was a holder, and the next is of the same client: its push, sent with the reply
--@include names
--@include shares/index
local CHANNELS = ARGV[3]
--@include hand_off
--@include release_general
--@include with_rest

-- The most frequent case first: an exclusive holder, of which nothing is to be remembered.
local waiter, fence, closes, copies = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
if fence == '0' or waiter:byte() ~= EXCLUSIVE or copies ~= '0' or closes ~= '0' then
  return with_rest(release_general(waiter, fence, closes, copies))
end
local grant = waiter .. ':' .. fence
if redis.call('EXISTS', QUEUE) == 0 and redis.call('ZREM', HOLDERS, grant) == 1 then
  return 1
end
local head = redis.call('ZRANGE', QUEUE, 0, 0)[1]
return head and redis.call('ZSCORE', HOLDERS, grant) and hand_off(grant, head, waiter:match(CLIENT), fence)
    or with_rest(release_general(waiter, fence, closes, copies))
