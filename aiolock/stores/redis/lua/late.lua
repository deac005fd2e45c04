-- late(not_after): the reply to a copy of a command that comes after its time (µs; '0': none); else nil.
-- It may be of something that was given up since, or done by another copy and undone. It must not take,
-- prolong, count or queue anything, so this is asked before the first write.
local function late(not_after)
  if not_after ~= '0' and STAMP - not_after > 0 then
    return redis.error_reply('LATE ' .. STAMP)
  end
end
