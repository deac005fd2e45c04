-- bury(channels): the queue is full, but those whose process is gone do not count: they leave it.
-- Returns how many. Its cost grows with the queue, which max_waiters bounds.
local function bury(channels)
  local listens, dead = {}, 0
  for _, other in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    local flags, client = other:match('^x(%a*)%d+[^:]*:([^:]+):')
    if listens[client] == nil then
      local heard = redis.call('PUBSUB', 'NUMSUB', channels .. client)[2]
      listens[client] = tonumber(heard) > 0
    end
    if not listens[client] and not flags:find('b', 1, true) then
      dead = dead + redis.call('ZREM', KEYS[2], other)
    end
  end
  return dead
end
