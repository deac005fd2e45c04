-- reap(member, ended): a lease has ended, at that time (ms). Its client is gone or stuck, so its
-- waiters leave the queue too (one claim is lost to it, not one for each) and a push tells it, should
-- it still listen: then they come back at their old places. Where the lease was not to be renewed its
-- end means nothing. Returns for how long nobody enters now (ms), see `close`.
--@include close
local function reap(member, ended)
  redis.call('ZREM', KEYS[1], member)
  local flags, client, fence = member:match('^x(%a*)%d+[^:]*:([^:]+):%d+:(%d+)$')
  floor = tonumber(fence)
  if not flags:find('f', 1, true) then
    local mark = ':' .. client .. ':'
    for _, other in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
      if other:find(mark, 1, true) then
        redis.call('ZREM', KEYS[2], other)
      end
    end
  end
  if client ~= '-' then
    redis.pcall('PUBLISH', ARGV[5] .. client, 'l ' .. member .. ' expired ' .. KEYS[1])
  end
  return close(member, ended)
end
