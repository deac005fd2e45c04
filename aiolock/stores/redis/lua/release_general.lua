-- release_general(waiter, fence, closes, copies): `release`, for all cases. Returns the reply, and the
-- rest that is left (see `with_rest`), if any.
--@include clock
--@include new_step
--@include with_placeholder
--@include leave_tombstone
--@include remove_holder
--@include close
--@include moved_up
--@include advance
--@include shares/leave
local function release_general(waiter, fence, closes, copies)
  local step = new_step(waiter:match(CLIENT))
  if copies ~= '0' then
    leave_tombstone(waiter, math.ceil(copies / 1000))
  end
  if SHARES then
    if fence == '0' then
      leave(waiter)
    end
  end
  if fence == '0' and redis.call('ZREM', QUEUE, waiter) == 1 then
    -- It may have held back others, which fit beside holders that share.
    local first = redis.call('ZRANGE', HOLDERS, 0, 0)[1]
    if first and first:byte() == EXCLUSIVE then
      return 2
    end
    moved_up(step, waiter)
    advance(step)
    return 2, step.rest
  end

  local waits = redis.call('EXISTS', QUEUE) == 1
  local function released()
    local grant, ends = remove_holder(step, waiter, fence, closes ~= '0')
    if not grant then
      return 0
    end
    local exclusive = grant:byte() == EXCLUSIVE
    -- A lease that has ended was lost, although its holder could still release it.
    local lost = ends and (closes == '2' or ends <= NOW) and math.min(math.floor(ends), NOW) or nil
    if closes ~= '0' and close(step, grant, lost) and exclusive or not waits then
      return 1
    end
    step.floor, step.reply_to = tonumber(grant:match(FENCE_OF)), step.asker
    local _, _, message = advance(step, exclusive)
    return message or 1, step.rest
  end
  -- With permits, their counters keep the holders from vanishing.
  if waits and not waiter:find(PERMITS) then
    return with_placeholder(released)
  end
  return released()
end
