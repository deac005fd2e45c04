-- advance(step, free, asking, ttl, counted, behind): grants the lock from the head of the queue, while waiters fit.
--   free     there is no holder
--   asking   the waiter that is answered now, if any: if it is next, it gets a lease of `ttl` and no push
--   counted  a count has been raised
--   behind   the ticket of the last waiter that was passed over by an earlier call; nil: none
-- Returns the fence of `asking`, nil if it did not enter; when the first of the new leases ends (ms), nil
-- if there are none; and the first push to `step.reply_to`, which goes with the reply, nil if none.
--
-- A waiter enters only if its client listens. Its first lease is only the claim, so a stuck client costs
-- no more than that. A waiter that does not fit holds back those behind it. But if `counted`, one that
-- waits for a higher count is passed over, because those behind it may wait for less; unless all of them
-- have declared the same number.
-- After many grants, the client of the next waiter is pushed to ask, and so goes on with them: this script
-- blocks all other clients. Not within a group (&), which enters as a whole; nor for a count (^), where each
-- that asks enters, and no other: then `step.rest` says that another call goes on. So it does after many
-- dead waiters, and before the first one that `remove_stuck` has not looked at.
-- If the first waiter has a share (%), the next one is that of `next_waiter`. A script without the keys for it leaves
-- that to another call; so it does as long as a stuck client may have the waiter that is next.
--@include listens
--@include push
--@include fits
--@include grant_exclusive
--@include grant_shared
--@include leave_rest
--@include moved_up
--@include tell_first
--@include shares/next_waiter
--@include shares/leave
--@include shares/pay
local function advance(step, free, asking, ttl, counted, behind)
  local fence_of_asking, first_end, push_with_reply
  local passed_over, granted, looked, most = 0, 0, 0, math.min(PART, step.front or PART)
  if behind then
    local next_one = redis.call('ZRANGEBYSCORE', QUEUE, '(' .. behind, '+inf', 'LIMIT', 0, 1)[1]
    passed_over = next_one and redis.call('ZRANK', QUEUE, next_one) or redis.call('ZCARD', QUEUE)
  end
  -- pcall: a queue that has just become empty may be another node's, see `with_placeholder`.
  local waiter = redis.pcall('ZRANGE', QUEUE, passed_over, passed_over)[1]
  while waiter do
    if looked >= most and step.passing == 0 then
      leave_rest(step, counted, passed_over)
      break
    end
    local share, ticket = waiter:find('%', 1, true), nil
    local weight = share and 4 or 1 -- of the work for one waiter
    looked = looked + weight
    if share and (not SHARES or step.front) then
      leave_rest(step, counted, passed_over, '%')
      break
    end
    if SHARES then
      if share then
        waiter, ticket = next_waiter(waiter)
        ticket = ticket or redis.call('ZSCORE', QUEUE, waiter)
      end
    end
    local mode, flags, claim, rule, client = waiter:match(MODE_FLAGS_CLAIM_RULE_CLIENT)
    -- Listeners are counted first and notified second: a push also reaches those that listen at a replica,
    -- where they are not counted, and they would enter although they had been taken for dead.
    local there = client and listens(client, flags, step.asker)
    local enters = there and (free and (rule == '' or mode == 'x') or fits(step, waiter, 1))
    if there and not enters then
      local _, _, declared = waiter:match(RULE_NUMBER_DECLARED)
      if not counted or rule ~= '^' or declared ~= '' then
        break
      end
      passed_over = passed_over + 1
    elseif enters and granted >= GRANTS and waiter ~= asking and rule ~= '&' then
      if rule == '^' then
        leave_rest(step, counted, passed_over)
      else
        push(waiter, client, 'd ' .. HOLDERS)
      end
      break
    else
      if SHARES then
        if share and not enters then
          leave(waiter, ticket)
        end
      end
      redis.call('ZREM', QUEUE, waiter)
      if not there then
        moved_up(step, waiter)
      end
    end
    if enters then
      free, granted = false, granted + weight
      local lease, mark, fence = claim, UNCONFIRMED, nil
      if waiter == asking then
        lease, mark = ttl, 0
      end
      if mode == 's' then
        fence = grant_shared(step, waiter, lease, mark)
      else
        fence = grant_exclusive(waiter, lease, mark, step.floor)
      end
      if SHARES then
        if share then
          pay(waiter, ticket)
        end
      end
      if waiter == asking then
        fence_of_asking = fence
      else
        local message = 'g ' .. waiter .. ' ' .. fence .. ' ' .. lease .. ' ' .. STAMP .. ' ' .. HOLDERS
        if client == step.reply_to and not push_with_reply then
          push_with_reply = message
        else
          push(waiter, client, message)
        end
      end
      first_end = math.min(first_end or math.huge, tonumber(lease))
      if mode ~= 's' or step.used and step.used >= step.limit then
        break -- no other fits beside it, or all permits are taken
      end
    end
    waiter = redis.pcall('ZRANGE', QUEUE, passed_over, passed_over)[1]
  end
  if step.bucket or step.moved_up then
    tell_first(step, asking)
  end
  return fence_of_asking, first_end, push_with_reply
end
