-- acquire_heartbeat: `acquire` of a waiter that is in the queue already, and the heartbeat of its client, as
-- `presence`. One command does both: the waiter would ask anyway, before long.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  as of `acquire`
-- returns  as `acquire`
--@include names
local CHANNELS = ARGV[4]
--@include clock
--@include late
--@include acquire_taken
--@include with_rest

local waiter, ticket = ARGV[5], tonumber(ARGV[6])
local too_late = late(ARGV[7])
if too_late then
  return too_late
end
-- pcall: an ACL may forbid it by now, which is no reason to give no answer.
redis.pcall('PUBLISH', CHANNELS .. waiter:match(CLIENT), 'p')
return with_rest(acquire_taken(waiter, ticket, ARGV[1], tonumber(ARGV[3])))
