-- remove_stuck(step, ended, behind): removes waiters from the queue, behind that ticket: those of the clients of
-- these grants, whose leases have ended. If more are to be looked at, `step.rest` says so. `ended`: a list of
-- grants. Returns those of which a waiter was removed, by their clients.
--@include remove_part
local function remove_stuck(step, ended, behind)
  local stuck, removed = {}, {}
  for _, grant in ipairs(ended) do
    local client = grant:match(CLIENT) or grant
    stuck[client] = stuck[client] or grant
  end
  local last, upto = remove_part(function(waiter)
    local client = waiter:match(CLIENT) or waiter
    removed[client] = stuck[client] or removed[client]
    return stuck[client]
  end, behind)
  if last then
    step.rest, step.front = {'s', last}, upto
    for _, grant in pairs(stuck) do
      step.rest[#step.rest + 1] = grant
    end
  end
  return removed
end
