-- account_of(waiter): the account of its share in its priority, as text; that priority, the weight of the share (in
-- thousandths), and how many permits the waiter takes, 0 if it is for no semaphore. nil if it has no share.
local function account_of(waiter)
  local share, weight = waiter:match(SHARE_WEIGHT)
  local priority = share and tonumber(waiter:match(PRIORITY_OF) or 0)
  if not priority or math.abs(priority) > 9 then
    return nil
  end
  weight = math.max(weight == '' and 1000 or tonumber(weight), 1)
  return priority .. '.' .. share, priority, weight, tonumber(waiter:match(PERMITS) or 0)
end
