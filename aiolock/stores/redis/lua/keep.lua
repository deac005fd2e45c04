-- keep(ms, slack): the key of the holders lives for at least `ms`, less `slack`. Never for less than
-- before: that may be for a longer lease, or for something that must be remembered.
local function keep(ms, slack)
  if redis.call('PTTL', HOLDERS) < ms - (slack or 0) then
    redis.call('PEXPIRE', HOLDERS, ms)
  end
end
