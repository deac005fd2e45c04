-- end_grant(step, grant, reason, ended, claim): the holder has lost its grant, at `ended` (ms), and gets the
-- reason by a push. `claim`: the lease was a claim, so it may never have been entered.
--@include drop
--@include tell
--@include close
local function end_grant(step, grant, reason, ended, claim)
  drop(step, grant)
  local client = grant:match(CLIENT) or grant
  -- The client may have handed the lock on by itself since, under higher fences (see `pass`).
  step.floor = math.max(step.floor, (tonumber(grant:match(FENCE_OF)) or 0) + MAX_AHEAD)
  if client ~= NOBODY then
    tell(grant, client, 'l ' .. grant .. ' ' .. reason .. ' ' .. HOLDERS)
  end
  close(step, grant, ended, claim)
end
