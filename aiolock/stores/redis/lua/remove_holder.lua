-- remove_holder(step, waiter, fence, timed): removes the grant of this waiter from the holders, with a fence other
-- than '0' only the grant with that fence. Returns the grant, nil if it holds none; with `timed` also when its lease
-- would have ended (ms).
--@include remove_grant
--@include as_shared
local function remove_holder(step, waiter, fence, timed)
  local grant = waiter .. ':' .. fence
  if fence == '0' then
    local first = redis.call('ZRANGE', HOLDERS, 0, 0)[1]
    if first and first:sub(1, #waiter + 1) == waiter .. ':' then
      grant = first
    else
      local member = as_shared(waiter) or waiter
      local known = redis.call('ZSCORE', HOLDERS, member)
      if not known then
        return nil
      end
      grant = member .. ':' .. string.format('%.0f', known)
    end
  end
  local ends = timed and redis.call('ZSCORE', HOLDERS, grant)
  if remove_grant(step, grant) then
    return grant, tonumber(ends)
  end
  grant = as_shared(grant)
  ends = timed and grant and redis.call('ZSCORE', HOLDERS, grant)
  if grant and remove_grant(step, grant) then
    return grant, tonumber(ends)
  end
end
