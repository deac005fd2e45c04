-- allow_writes(): a first write, which changes nothing. It is allowed at maxmemory, and after it so are all
-- others, because a script that has begun to write must be able to end.
local function allow_writes()
  redis.call('ZREM', HOLDERS, PLACEHOLDER)
end
