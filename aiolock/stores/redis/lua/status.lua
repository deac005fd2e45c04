-- status: the holders and waiters at one moment, and where they run. Writes nothing.
--
-- KEYS  1 holders  2 queue
-- ARGV  1 prefix of the clients' channels  2 1: the waiters too  0: only the holders
-- returns  {now (µs), {grant, lease end (ms), …}, {waiter, ticket, …}, the limit, -1 for none,
--           {client, its process, how many listen for it, …}}
--@include names
local CHANNELS = ARGV[1]
--@include clock

local from = '(' .. string.format('%.0f', NOW)
local limit = redis.call('ZSCORE', HOLDERS, 'limit')
local held = redis.call('ZRANGEBYSCORE', HOLDERS, from, COUNTERS - 1, 'WITHSCORES')
local waiting = ARGV[2] == '1' and redis.call('ZRANGE', QUEUE, 0, -1, 'WITHSCORES') or {}

-- pcall: the key with who a client is may be in another slot; and an ACL may forbid to count.
local clients, seen = {}, {[NOBODY] = true}
for _, parties in ipairs({held, waiting}) do
  for i = 1, #parties, 2 do
    local client = parties[i]:match(CLIENT)
    if client and not seen[client] then
      seen[client] = true
      local key = CHANNELS:gsub('push:$', 'client:') .. client
      local says = redis.pcall('GET', key)
      local heard = redis.pcall('PUBSUB', 'NUMSUB', CHANNELS .. client)[2]
      clients[#clients + 1] = client
      clients[#clients + 1] = type(says) == 'string' and says or ''
      clients[#clients + 1] = tonumber(heard) or 1
    end
  end
end
return {tonumber(STAMP), held, waiting, limit and limit - COUNTERS or -1, clients}
