-- end_grant(step, grant, reason, ended, claim): its holder has lost it, at `ended` (ms), and is told why.
-- `claim`: its lease was a claim, so it may never have been entered. Returns its client.
--@include drop
--@include close
local function end_grant(step, grant, reason, ended, claim)
  drop(step, grant)
  local client = grant:match(CLIENT) or grant
  step.floor = math.max(step.floor, tonumber(grant:match(FENCE_OF)) or 0)
  if client ~= NOBODY then
    redis.pcall('PUBLISH', CHANNELS .. client, 'l ' .. grant .. ' ' .. reason .. ' ' .. HOLDERS)
  end
  close(step, grant, ended, claim)
  return client
end
