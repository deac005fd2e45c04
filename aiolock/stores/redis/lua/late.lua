-- late(not_after): the reply to a copy of a command that comes after its time (µs; '0': no limit); else nil.
-- The command may have been given up since, or carried out by another copy and undone. Such a copy must not
-- take, prolong, count or queue anything, so this is checked before the first write.
local function late(not_after)
  if not_after ~= '0' and STAMP - not_after > 0 then
    return redis.error_reply('LATE ' .. STAMP)
  end
end
