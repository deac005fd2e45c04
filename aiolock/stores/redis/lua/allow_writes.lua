-- allow_writes(): a first write, which changes nothing. At maxmemory it is allowed, and after it so are
-- all others, since a script that has begun to write is to end.
local function allow_writes()
  redis.call('ZREM', HOLDERS, ANCHOR)
end
