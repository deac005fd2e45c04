-- quorum/register: registers this server in its quorum, and answers for how long it does not vote. It is the first
-- command on every connection: no request may reach a restarted server before it.
--
-- KEYS  1 quorum config
-- ARGV  1 the quorum config  2 the longest lease there (ms)
--       3 1: the server forgets nothing when it is restarted  0: it may
--       4 if it has no config, though it has run for long: 'new' it never had one, 'lost' it has forgotten it,
--         '' not known  5 the client's own channel
-- returns  {for how many ms it does not vote (less than 0: it has no config), its run, how many listen
--           to the channel, now (µs)}
--@include quorum/names
--@include clock

local config, longest, durable, memory = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', ARGV[4]
local info = redis.call('INFO', 'server')
if redis.call('INFO', 'replication'):find('role:slave', 1, true) then
  return redis.error_reply('READONLY it is a replica')
end
local run = info:match('run_id:(%w+)')
local began = NOW - info:match('uptime_in_seconds:(%d+)') * 1000
local receivers = redis.call('PUBSUB', 'NUMSUB', ARGV[5])[2]
local known = redis.call('GET', KEYS[1])
local from = 0
if known then
  local its_run, its_from, its_config = known:match('^(%S+) (%d+) (.*)$')
  if its_config ~= config then
    return redis.error_reply('QUORUM ' .. its_config)
  end
  from = tonumber(its_from)
  if its_run ~= run and not durable then
    from = math.max(from, NOW + longest) -- restarted, with old data or none
  end
elseif NOW - began < longest then
  -- It may have been restarted empty. A durable one votes as soon as it is restarted, so it may also have been emptied
  -- just now, with votes out that it gave since. Any other was silent all that time.
  from = (durable and NOW or began) + longest + 1000
elseif memory == 'lost' then
  from = NOW + longest
elseif memory == '' then
  return {-1, run, receivers, tonumber(STAMP)}
end
redis.call('SET', KEYS[1], run .. ' ' .. string.format('%.0f', from) .. ' ' .. config)
return {math.max(0, from - NOW), run, receivers, tonumber(STAMP)}
