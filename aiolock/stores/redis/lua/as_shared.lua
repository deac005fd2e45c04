-- as_shared(waiter): how it stands among the holders once it was downgraded, and so does its grant; nil
-- for what never is.
local function as_shared(waiter)
  return waiter:find(DOWNGRADES) and 's' .. waiter:sub(2) or nil
end
