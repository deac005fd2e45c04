-- acquire_taken(waiter, ticket, ttl, most): `acquire`, if the lock is not simply free. Returns the reply, and
-- the rest that is left (see `with_rest`), if any.
-- The most frequent case is handled here: an exclusive waiter and an exclusive holder.
--@include enqueue
--@include busy
--@include with_placeholder
--@include acquire_general
--@include acquire_rate
local function acquire_taken(waiter, ticket, ttl, most)
  local shared = waiter:byte() == SHARED
  if shared and waiter:find(TOKENS) then
    return acquire_rate(waiter, ticket, ttl, most)
  end
  local first = redis.call('ZRANGE', HOLDERS, 0, shared and '0' or '1', 'WITHSCORES')
  local holder, lease_left = first[1], first[2] and tonumber(first[2]) - NOW
  if shared or not holder or lease_left <= 0 or holder:byte() ~= EXCLUSIVE then
    if holder and lease_left <= 0 then
      return with_placeholder(function()
        return acquire_general(waiter, ticket, ttl, most, first)
      end)
    end
    return acquire_general(waiter, ticket, ttl, most, first)
  end

  -- Seldom needed: a tombstone of this waiter is possible only beside the one grant.
  local tombstone = first[3] and redis.call('ZSCORE', HOLDERS, '!' .. waiter)
  if tombstone and tombstone - COUNTERS > NOW then
    return {0, 0}
  elseif holder:find(waiter .. ':', 1, true) == 1 then
    local claim = first[2] % 1 == UNCONFIRMED and 1 or 0
    return {1, tonumber(holder:match(FENCE_OF)), lease_left, 0, claim}
  elseif holder:find(DONE, 1, true) == 1 and waiter:find(WANTS_ONCE) then
    redis.call('ZREM', QUEUE, waiter) -- if `finish` has not come to it yet
    return {4, lease_left}
  elseif ticket == -1 then
    return busy(lease_left, holder)
  end
  local client = waiter:match(CLIENT)
  local displaced, place, before
  ticket, displaced, place, before = enqueue(waiter, client, ticket, most)
  if not ticket then
    return {3, displaced}
  elseif place then
    -- If one of the same client is directly before it, that client may hand the lock on by itself. Not if either has
    -- a share: then any other waiter may be next.
    before = before or holder
    if before:match(CLIENT) == client and not (waiter:find('%', 1, true) or before:find('%', 1, true)) then
      return {2, ticket, place, lease_left, tonumber(STAMP), displaced, before}
    end
  else
    place = redis.call('ZRANK', QUEUE, waiter) + 1
  end
  return {2, ticket, place, lease_left, tonumber(STAMP), displaced}
end
