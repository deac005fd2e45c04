-- remove_dead(channels): those whose process is gone leave the queue, where it counts how many wait. Returns
-- whether there were any. Its cost grows with the queue, which max_waiters or the size of the group
-- bounds.
local function remove_dead(channels)
  local listens, found = asker and {[asker] = true} or {}, false
  for _, other in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    local flags, client = other:match('^%a(%a*)%d+[^:]*:([^:]+):')
    if client and listens[client] == nil then
      -- pcall: an ACL may forbid to ask by now, and then nobody is taken for dead.
      listens[client] = redis.pcall('PUBSUB', 'NUMSUB', channels .. client)[2] ~= 0
    end
    if not client or not listens[client] and not flags:find('b', 1, true) then
      redis.call('ZREM', KEYS[2], other)
      found = true
    end
  end
  return found
end
