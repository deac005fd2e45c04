-- quorum/init: registers this server in a new quorum, so that it votes at once: it has no votes to have forgotten.
--
-- KEYS  1 quorum config
-- ARGV  1 the quorum config
-- returns  1: it votes from now on  0: it did so already
-- errors  QUORUM the config of another quorum; INUSE it was in use before it was last started
--@include quorum/names
--@include clock

local run = redis.call('INFO', 'server'):match('run_id:(%w+)')
if redis.call('INFO', 'replication'):find('role:slave', 1, true) then
  return redis.error_reply('READONLY it is a replica')
end
local known = redis.call('GET', KEYS[1])
if known then
  local its_run, its_from, its_config = known:match('^(%S+) (%d+) (.*)$')
  if its_config ~= ARGV[1] then
    return redis.error_reply('QUORUM ' .. its_config)
  end
  if its_run ~= run then
    return redis.error_reply('INUSE it was a member of this quorum before it was last started')
  end
  if tonumber(its_from) <= NOW then
    return 0
  end
end
redis.call('SET', KEYS[1], run .. ' 0 ' .. ARGV[1])
return 1
