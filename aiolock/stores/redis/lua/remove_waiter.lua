-- remove_waiter(step, waiter, fence, timed): removes the waiter from the queue, or its grant from the holders; with
-- a fence other than '0', only the grant with that fence. Returns what it was (1 a holder, 2 queued, 0 neither), and
-- the grant that it had, if any; with `timed` also when the lease of that would have ended (ms).
--@include remove_grant
--@include as_shared
local function remove_waiter(step, waiter, fence, timed)
  local grant = waiter .. ':' .. fence
  if fence == '0' then
    if redis.call('ZREM', QUEUE, waiter) == 1 then
      return 2
    end
    local first = redis.call('ZRANGE', HOLDERS, 0, 0)[1]
    if first and first:sub(1, #waiter + 1) == waiter .. ':' then
      grant = first
    else
      local member = as_shared(waiter) or waiter
      local known = redis.call('ZSCORE', HOLDERS, member)
      if not known then
        return 0
      end
      grant = member .. ':' .. string.format('%.0f', known)
    end
  end
  local ends = timed and redis.call('ZSCORE', HOLDERS, grant)
  if remove_grant(step, grant) then
    return 1, grant, tonumber(ends)
  end
  grant = as_shared(grant)
  ends = timed and grant and redis.call('ZSCORE', HOLDERS, grant)
  if grant and remove_grant(step, grant) then
    return 1, grant, tonumber(ends)
  end
  return 0
end
