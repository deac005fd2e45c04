-- go_on: goes on with what another call has left, see `with_rest`.
--
-- KEYS  1 holders  2 queue  3 fence  4 line  5 shares
-- ARGV  1 prefix of the clients' channels  2… what was left
-- returns  0
--@include names
--@include shares/index
local CHANNELS = ARGV[1]
--@include clock
--@include new_step
--@include allow_writes
--@include remove_stuck
--@include dismiss
--@include advance
--@include push
--@include with_rest

local work, behind = ARGV[2], ARGV[3]
local step = new_step()
allow_writes()
if work == 'o' then
  dismiss(step, behind)
else
  if work == 's' then
    local ended = {}
    for i = 4, #ARGV do
      ended[#ended + 1] = ARGV[i]
    end
    -- Some of them may have come back before they were removed: they ask once more.
    for client, grant in pairs(remove_stuck(step, ended, behind)) do
      push(grant, client, 'l ' .. grant .. ' expired ' .. HOLDERS)
    end
  end
  advance(step, nil, nil, nil, work == 'c', work == 'c' and behind)
end
return with_rest(0, step.rest)
