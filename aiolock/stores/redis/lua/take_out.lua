-- take_out(step, waiter, fence, timed): removes it from the queue or the holders; with a fence other than
-- '0', that grant only. Returns what it was (1 a holder, 2 queued, 0 neither), and the grant that it had,
-- if any; with `timed` also when that would have ended.
--@include drop
--@include as_shared
local function take_out(step, waiter, fence, timed)
  local grant = waiter .. ':' .. fence
  if fence == '0' then
    if redis.call('ZREM', QUEUE, waiter) == 1 then
      return 2
    end
    local first = redis.call('ZRANGE', HOLDERS, 0, 0)[1]
    if first and first:sub(1, #waiter + 1) == waiter .. ':' then
      grant = first
    else
      local standing = as_shared(waiter) or waiter
      local known = redis.call('ZSCORE', HOLDERS, standing)
      if not known then
        return 0
      end
      grant = standing .. ':' .. string.format('%.0f', known)
    end
  end
  local ends = timed and redis.call('ZSCORE', HOLDERS, grant)
  if drop(step, grant) then
    return 1, grant, tonumber(ends)
  end
  grant = as_shared(grant)
  ends = timed and grant and redis.call('ZSCORE', HOLDERS, grant)
  if grant and drop(step, grant) then
    return 1, grant, tonumber(ends)
  end
  return 0
end
