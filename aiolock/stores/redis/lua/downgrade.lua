-- downgrade: an exclusive holder becomes a shared one without letting go: the same grant, under the
-- same fence, until the same time. Those at the head of the queue who may share it enter.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 waiter, as it was granted  2 fence of the grant  3 prefix of the clients' channels
-- returns  1 it is a shared holder now  0 it was no holder any more

local asker -- none of those who wait
--@include clock
--@include mint
--@include shared
local member = ARGV[1] .. ':' .. ARGV[2]
local sharing = downgraded(member)
local ends = redis.call('ZSCORE', KEYS[1], member)
if not ends then
  return redis.call('ZSCORE', KEYS[1], sharing) and 1 or 0
elseif tonumber(ends) <= now then
  return 0
end
redis.call('ZREM', KEYS[1], member) -- first: at maxmemory it is allowed, and after it so is ZADD
redis.call('ZADD', KEYS[1], ends, sharing, ARGV[2], downgraded(ARGV[1]))
keep(math.floor(ends) - now + 60000)
floor = tonumber(ARGV[2])
--@include advance
advance(ARGV[3])
return 1
