-- dismiss(step, behind): removes waiters from the queue that want work done once, as it is done, and notifies
-- their clients. Those behind that ticket; if more are to be looked at, `step.rest` says so.
--@include remove_part
--@include push
local function dismiss(step, behind)
  local notified = {}
  local last = remove_part(function(waiter)
    local client = waiter:find(WANTS_ONCE) and waiter:match(CLIENT)
    if client and not notified[client] then
      notified[client] = true
      push(waiter, client, 'd ' .. HOLDERS)
    end
    return client
  end, behind)
  step.rest = last and {'o', last}
end
