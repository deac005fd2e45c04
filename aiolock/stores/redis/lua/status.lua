-- status: holders and waiters at one moment, so many of each at most, and where they run. Writes nothing.
--
-- KEYS  1 holders  2 queue
-- ARGV  1 prefix of the clients' channels
--       2 how many waiters at most  3 from which ticket on, -inf for the first
--       4 how many holders at most  5 from which lease end on (ms), empty for the first
--       6 behind which grant of those that end then, which may be gone; empty for the first of them
-- returns  {now (µs), {grant, lease end (ms), …}, {waiter, ticket, …}, the limit, -1 for none,
--           {client, its process, how many listen for it, …}, how many holders there are}
--@include names
local CHANNELS = ARGV[1]
--@include clock
--@include rank
--@include count_up_to

local alive = '(' .. string.format('%.0f', NOW)
local limit = redis.call('ZSCORE', HOLDERS, 'limit')
local later = tonumber(ARGV[5])
local from = later and later > NOW and ARGV[5] or alive
local skip = from == ARGV[5] and ARGV[6] ~= '' and count_up_to(ARGV[6], from) or 0
local held = redis.call('ZRANGEBYSCORE', HOLDERS, from, COUNTERS - 1, 'WITHSCORES', 'LIMIT', skip, ARGV[4])
local waiting = {}
if ARGV[2] ~= '0' then
  waiting = redis.call('ZRANGEBYSCORE', QUEUE, ARGV[3], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
end

local holding = #held / 2
if later or holding == tonumber(ARGV[4]) then -- by rank, which takes no longer for many
  holding = rank(COUNTERS - 1) - rank(alive)
end

-- pcall: the key with who a client is may be in another slot; and an ACL may forbid to count.
local clients, seen = {}, {[RESERVED] = true}
for _, parties in ipairs({held, waiting}) do
  for i = 1, #parties, 2 do
    local client = parties[i]:match(CLIENT)
    if client and not seen[client] then
      seen[client] = true
      local key = CHANNELS:gsub('push:$', 'client:') .. client
      local metadata = redis.pcall('GET', key)
      local receivers = redis.pcall('PUBSUB', 'NUMSUB', CHANNELS .. client)[2]
      clients[#clients + 1] = client
      clients[#clients + 1] = type(metadata) == 'string' and metadata or ''
      clients[#clients + 1] = tonumber(receivers) or 1
    end
  end
end
return {tonumber(STAMP), held, waiting, limit and limit - COUNTERS or -1, clients, holding}
