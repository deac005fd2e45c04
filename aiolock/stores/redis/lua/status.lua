-- status: who holds and who waits, at one moment, and where they run. Writes nothing.
--
-- KEYS  1 holders  2 queue
-- ARGV  1 prefix of the clients' channels  2 1: those who wait too  0: only the holders
-- returns  {now (µs), {grant, lease end (ms), …}, {waiter, ticket, …}, the limit, -1 for none,
--           {client, its process, how many listen for it, …}}

--@include clock
local FIRST = 1e15 -- see `shared`
local from = '(' .. string.format('%.0f', now)
local limit = redis.call('ZSCORE', KEYS[1], 'limit')
local held = redis.call('ZRANGEBYSCORE', KEYS[1], from, FIRST - 1, 'WITHSCORES')
local waiting = ARGV[2] == '1' and redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES') or {}

-- pcall: where a client says who it is, is in another slot; and an ACL may forbid to count.
local clients, seen = {}, {['-'] = true}
for _, parties in ipairs({held, waiting}) do
  for i = 1, #parties, 2 do
    local client = parties[i]:match('^%a+%d+[^:]*:([^:]+):')
    if client and not seen[client] then
      seen[client] = true
      local key = ARGV[1]:gsub('push:$', 'client:') .. client
      local says = redis.pcall('GET', key)
      local heard = redis.pcall('PUBSUB', 'NUMSUB', ARGV[1] .. client)[2]
      clients[#clients + 1] = client
      clients[#clients + 1] = type(says) == 'string' and says or ''
      clients[#clients + 1] = tonumber(heard) or 1
    end
  end
end
return {tonumber(stamp), held, waiting, limit and limit - FIRST or -1, clients}
