-- as_shared(waiter): how this waiter, or its grant, is written among the holders after a downgrade; nil if
-- it cannot be downgraded.
local function as_shared(waiter)
  return waiter:find(DOWNGRADES) and 's' .. waiter:sub(2) or nil
end
