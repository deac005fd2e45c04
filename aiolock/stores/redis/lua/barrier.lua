-- barrier: a write of this connection, because WAIT counts no others; and which master this is.
--
-- KEYS  1 a key of this client, for nothing else
-- ARGV  1 for how long to keep it (ms)
-- returns  {its replication history, which is new each time that a server starts or becomes a master,
--          how many replicas follow it now}

-- PEXPIRE first: at maxmemory it is allowed, and leases are renewed then, too.
if redis.call('PEXPIRE', KEYS[1], ARGV[1]) == 0 then
  redis.call('SET', KEYS[1], '', 'PX', ARGV[1])
end
local info = redis.pcall('INFO', 'replication')
if type(info) ~= 'string' then
  return redis.error_reply('NOWAIT ' .. info.err) -- a right that nothing else needs
end
local _, following = info:gsub('state=online', '')
return {info:match('master_replid:(%w+)') or '', following}
