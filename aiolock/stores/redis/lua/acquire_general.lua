-- acquire_general(waiter, ticket, ttl, most, first): `acquire`, if no living holder excludes this waiter:
-- the leases of the holders have ended, or they share the lock, or there are none. `first`: the first of
-- the holders with its score, and for an exclusive waiter the second, too. Returns the reply, and the rest that
-- is left (see `with_rest`), if any.
--@include new_step
--@include enqueue
--@include busy
--@include differs
--@include as_shared
--@include reap
--@include listens
--@include fits
--@include grant_exclusive
--@include grant_shared
--@include advance
--@include shares/next_waiter
local function acquire_general(waiter, ticket, ttl, most, first)
  local step = new_step(waiter:match(CLIENT))
  local shared, asked_again, waits = waiter:byte() == SHARED, ticket > 0, ticket >= 0
  local displaced = asked_again and 1 or 0
  local rule, _, declared = waiter:match(RULE_NUMBER_DECLARED)
  local function enters()
    local fence
    if shared then
      fence = grant_shared(step, waiter, ttl, 0)
    else
      fence = grant_exclusive(waiter, ttl, 0, step.floor)
    end
    return {1, tonumber(fence), tonumber(ttl), displaced}, step.rest
  end

  -- What is known of this waiter: its grant, or that it gave up; and the number that others declared.
  local member = as_shared(waiter) or waiter -- its member among the holders, if it holds
  local fence, tombstone, numbers
  if declared and declared ~= '' then
    numbers = redis.call('ZMSCORE', HOLDERS, 'used', 'limit', 'declared', waiter, '!' .. waiter)
    fence, tombstone = numbers[4], numbers[5]
  elseif first[3] or first[1] and (shared or tonumber(first[2]) >= COUNTERS) then
    local known = redis.call('ZMSCORE', HOLDERS, member, '!' .. waiter)
    fence, tombstone = known[1], known[2]
  end
  if tombstone and tombstone - COUNTERS > NOW then
    return {0, 0}
  end
  local known = numbers and differs(step, declared, numbers)
  if known then
    return {5, known}
  end

  local reaped = first[1] and tonumber(first[2]) <= NOW
  if reaped then
    first = reap(step, waiter, fence and member .. ':' .. string.format('%.0f', fence))
    fence = (shared or member ~= waiter) and redis.call('ZSCORE', HOLDERS, member)
  end
  local holder, lease_left -- the lease that ends first (ms)
  if first[1] and tonumber(first[2]) < COUNTERS then
    holder, lease_left = first[1], first[2] - NOW
  end
  if fence then
    if reaped and holder:byte() == SHARED then
      advance(step) -- the leases that ended may have held back others
    end
    fence = string.format('%.0f', fence)
    local ends = redis.call('ZSCORE', HOLDERS, member .. ':' .. fence)
    local claim = ends % 1 == UNCONFIRMED and 1 or 0
    return {1, tonumber(fence), ends - NOW, 0, claim}, step.rest
  end

  -- It enters at once if it fits and the queue is empty. A waiter for a count blocks no other, so it enters
  -- past the queue. A party that completes its group, but does not wait, enters with those in the queue.
  local open = not holder or holder:byte() == SHARED -- shared waiters may enter beside the holders
  local queue = redis.call('EXISTS', QUEUE) == 1
  local past = rule == '^'
    or rule == '&' and queue and not waits and not redis.call('ZSCORE', QUEUE, waiter)
  local may = open and (past or not queue)
  if may and rule then
    may = fits(step, waiter)
  elseif may then
    may = shared or not holder
  end
  local completes = may and queue and rule == '&'
  if may and not completes then
    if queue and redis.call('ZREM', QUEUE, waiter) == 1 then
      displaced = 0
    end
    return enters()
  end

  -- Otherwise it joins the queue, if it waits.
  local full, place
  if waits then
    ticket, displaced, place = enqueue(waiter, step.asker, ticket, most)
    full = not ticket and {3, displaced}
  end

  -- Look at the queue again only if something can have changed: a lease ended, the group may be full, or
  -- the first waiter is dead, or fits: those before it were dead, or it was pushed to ask after many grants.
  -- Otherwise it holds back the others. (A waiter for a count enters when the count is raised, or when it
  -- asks.)
  local due = not holder or reaped or asked_again or rule == '&'
  if open and queue and not due and rule ~= '^' then
    local head = redis.call('ZRANGE', QUEUE, 0, 0)[1]
    local unknown = not SHARES and head:find('%', 1, true) -- only `go_on` can tell which waiter is next
    if SHARES then
      head = next_waiter(head)
    end
    local flags, client = head:match(FLAGS_CLIENT)
    due = unknown or not client or not listens(client, flags, step.asker)
        or head:byte() == SHARED and fits(step, head, 1)
  end
  local first_end
  if open and due and rule ~= '^' then
    if completes then
      advance(step)
      return enters()
    end
    local fence_of_ours
    fence_of_ours, first_end = advance(step, not holder, waiter, ttl)
    if fence_of_ours then
      return {1, tonumber(fence_of_ours), tonumber(ttl), displaced}, step.rest
    end
    place = nil
    if not waits then
      if queue and redis.call('EXISTS', QUEUE) == 0 and fits(step, waiter) then
        return enters() -- all waiters in the queue were dead
      end
      holder = first_end and redis.call('ZRANGE', HOLDERS, 0, 0)[1] or holder
    end
  end

  if full then
    return full, step.rest
  end
  local alone = step.rest and 0 or KEPT -- if there is no holder
  lease_left = math.min(lease_left or first_end or alone, first_end or lease_left or alone)
  if lease_left <= 0 and not waits then
    return {0, -1}, step.rest
  end
  lease_left = math.max(lease_left, 0)
  if not waits then
    return busy(lease_left, holder), step.rest
  end
  place = place or redis.call('ZRANK', QUEUE, waiter) + 1
  return {2, ticket, place, lease_left, tonumber(STAMP), displaced}, step.rest
end
