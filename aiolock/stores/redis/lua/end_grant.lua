-- end_grant(step, grant, reason, ended, claim): the holder has lost its grant, at `ended` (ms), and gets the
-- reason by a push. `claim`: the lease was a claim, so it may never have been entered.
--@include remove_grant
--@include push
--@include close
local function end_grant(step, grant, reason, ended, claim)
  remove_grant(step, grant)
  local client = grant:match(CLIENT) or grant
  -- The client may have handed the lock on by itself since, under higher fences (see `report_handoff`).
  step.floor = math.max(step.floor, (tonumber(grant:match(FENCE_OF)) or 0) + MAX_AHEAD)
  if client ~= RESERVED and client:byte() ~= DETACHED then
    push(grant, client, 'l ' .. grant .. ' ' .. reason .. ' ' .. HOLDERS)
  end
  close(step, grant, ended, claim)
end
