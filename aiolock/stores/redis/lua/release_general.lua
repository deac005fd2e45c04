-- release_general(waiter, fence, closes, copies, grant, head): the rest of `release`. `grant`: what was
-- taken out of the holders already, and `head`, with its ticket, out of the queue; else both nil.
-- Returns the reply.
--@include clock
--@include new_step
--@include give_up
--@include take_out
--@include close
--@include advance
local function release_general(waiter, fence, closes, copies, grant, head)
  local step, was = new_step(waiter:match(CLIENT)), 1
  if copies ~= '0' then
    give_up(waiter, math.ceil(copies / 1000))
  end
  if not grant then
    was, grant = take_out(step, waiter, fence)
  end
  if was == 0 then
    return 0
  elseif was == 2 then
    -- It may be the one that held back others, who would fit beside those who share.
    local first = redis.call('ZRANGE', HOLDERS, 0, 0)[1]
    if first and first:byte() == EXCLUSIVE then
      return 2
    end
    advance(step)
    return 2
  end
  local exclusive = grant:byte() == EXCLUSIVE
  if closes and close(step, grant) and exclusive then
    return 1
  end
  step.floor, step.reply_to = tonumber(grant:match(FENCE_OF)), step.asker
  local _, _, push = advance(step, head, exclusive)
  return push or 1
end
