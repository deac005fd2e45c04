-- request: asks the holders to release the lock when they can; not too many at once, in the order in which their
-- leases end. Changes nothing.
--
-- KEYS  1 holders
-- ARGV  1 prefix of the clients' channels
--       2 from which lease end on (ms), empty for the first  3 behind which grant of those, which may be gone
--       4 not after (µs)
-- returns  how many clients have received it; {how many, lease end, grant} of the last of these if there are others
--@include names
local CHANNELS = ARGV[1]
--@include clock
--@include late
--@include push
--@include count_up_to

local too_late = late(ARGV[4])
if too_late then
  return too_late
end
local asked, from, skip = 0, '(' .. string.format('%.0f', NOW), 0
if ARGV[2] ~= '' and tonumber(ARGV[2]) > NOW then
  from = ARGV[2]
  skip = count_up_to(ARGV[3], from)
end
local held = redis.call('ZRANGEBYSCORE', HOLDERS, from, COUNTERS - 1, 'WITHSCORES', 'LIMIT', skip, PART + 1)
for i = 1, math.min(#held, 2 * PART), 2 do
  local grant = held[i]
  local client = grant:match(CLIENT) or RESERVED
  local message = 'r ' .. grant .. ' ' .. HOLDERS
  local receivers = (client == RESERVED or client:byte() == DETACHED) and 0 or push(grant, client, message)
  if type(receivers) ~= 'number' then
    return receivers -- the error
  elseif receivers > 0 then
    asked = asked + 1
  end
end
return held[2 * PART + 1] and {asked, held[2 * PART], held[2 * PART - 1]} or asked
