-- release: out of the holders or out of the queue, whichever it is in, and on to the next.
-- One script for release, timeout and cancellation, so "given up while being granted" is one
-- decision. The first write (ZREM) is allowed at maxmemory, and with it all the others.
--
-- KEYS  1 holders  2 queue  3 fence
-- ARGV  1 waiter  2 fence of the grant (0: whatever the waiter is now)  3 prefix of the channels
-- returns  1 it was a holder  2 it was queued  0 neither
--          'g …' it was a holder, and the next is of the same client: the push, by a shorter way

local member = ARGV[1] .. ':' .. ARGV[2]
if ARGV[2] == '0' then
  if redis.call('ZREM', KEYS[2], ARGV[1]) == 1 then
    return 2
  end
  member = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
  if not member or member:sub(1, #ARGV[1] + 1) ~= ARGV[1] .. ':' then
    return 0
  end
end
if redis.call('ZREM', KEYS[1], member) == 0 then
  return 0
end
local closes, head = member:find('[+~@]'), nil
if not closes then
  head = redis.call('ZPOPMIN', KEYS[2])[1]
  if not head then
    return 1
  end
end

--@include clock
--@include mint
floor = tonumber(member:match('%d+$'))
if closes then
  --@include close
  if close(member) > 0 then
    return 1
  end
  head = redis.call('ZPOPMIN', KEYS[2])[1]
end
--@include advance
local _, push = advance(ARGV[3], head, nil, member:match(':([^:]+):'))
return push or 1
