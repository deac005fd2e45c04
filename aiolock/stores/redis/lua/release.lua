-- release: out of the holders or out of the queue, whichever it is in, and on to the next.
-- One script for release, timeout and cancellation, so "given up while being granted" is one
-- decision. The first write (ZREM) is allowed at maxmemory, and with it all the others.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 waiter  2 fence of the grant (0: whatever the waiter is now)  3 prefix of the channels
--       4 1: the grant was entered  0: it was given up, or back, so that it does not close the lock
--       5 until when older copies of its `acquire` may come (µs), 0: none are on their way
-- returns  1 it was a holder  2 it was queued  0 neither
--          'g …' it was a holder, and the next is of the same client: the push, by a shorter way

local member, was, head = ARGV[1] .. ':' .. ARGV[2], 1, nil
-- First what is most often: one that held it alone, and nobody waits.
local gone = ARGV[2] ~= '0' and member:byte() == 120 and redis.call('ZREM', KEYS[1], member) == 1
if gone and not member:find('[+~@]') then
  head = redis.call('ZPOPMIN', KEYS[2])
  if not head[1] and ARGV[5] == '0' then
    return 1
  end
end

local asker = ARGV[1]:match(':([^:]+):')
--@include clock
--@include mint
-- And then: the next holds it alone as well, and listens (see `advance`). Nothing else is needed for it.
if head and ARGV[5] == '0' then
  local claim, client = head[1]:match('^x%a*(%d+)[^:]*:([^:]+):')
  local ours = client == asker
  if ours or client and redis.pcall('PUBSUB', 'NUMSUB', ARGV[3] .. client)[2] ~= 0 then
    floor = tonumber(ARGV[2])
    local push = hand_over(head[1], claim)
    if ours then
      return push
    end
    redis.pcall('PUBLISH', ARGV[3] .. client, push)
    return 1
  end
end

--@include shared
if ARGV[5] ~= '0' then
  --@include tombstone
  give_up(ARGV[1], math.ceil(ARGV[5] / 1000))
end
if ARGV[2] == '0' then
  local first = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
  if redis.call('ZREM', KEYS[2], ARGV[1]) == 1 then
    if first and first:byte() == 120 or redis.call('EXISTS', KEYS[2]) == 0 then
      return 2
    end
    was = 2 -- it may be the one that held back others, who would fit
  elseif first and first:sub(1, #ARGV[1] + 1) == ARGV[1] .. ':' then
    member = first
  else
    local waiter = downgraded(ARGV[1]) or ARGV[1]
    local fence = redis.call('ZSCORE', KEYS[1], waiter)
    if not fence then
      return 0
    end
    member = waiter .. ':' .. string.format('%.0f', fence)
  end
end
if was == 1 and not gone and not drop(member) then
  member = downgraded(member)
  if not member or not drop(member) then
    return 0
  end
end

local exclusive = was == 1 and member:byte() == 120
if was == 1 and ARGV[4] == '1' and member:find('[+~@]') then
  --@include close
  if close(ARGV[3], member) and exclusive then
    return was
  end
end
head = head or redis.call('ZPOPMIN', KEYS[2])
if not head[1] then
  return was
end
floor = was == 1 and tonumber(member:match('%d+$')) or 0
--@include advance
local _, push = advance(ARGV[3], head, exclusive, nil, nil, was == 1 and asker)
return push or was
