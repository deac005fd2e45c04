-- vote_taken(waiter, ticket, ttl, proposal, most, waits): `vote`, if there is a vote out or a queue, or if the waiter
-- shares. Returns the reply.
--@include quorum/wait_for_count
--@include quorum/new_vote_step
--@include quorum/first_vote
--@include quorum/vote_of
--@include quorum/reap_votes
--@include quorum/first_alive
--@include quorum/cast_vote
--@include quorum/inquire_shared
--@include quorum/end_vote
--@include quorum/vote_next
--@include quorum/with_rests
--@include remove_dead
--@include remove_dead_sample
--@include busy
--@include push
local function vote_taken(waiter, ticket, ttl, proposal, most, waits)
  local _, count = waiter:match(FLAGS_COUNT_CLIENT)
  if count then
    return wait_for_count(waiter, ticket, tonumber(count), waits)
  end
  local step, vote, score = new_vote_step(waiter:match(CLIENT)), first_vote()
  if redis.call('ZCARD', VOTES) > (vote and 1 or 0) then
    local tombstone = redis.call('ZSCORE', VOTES, '!' .. waiter)
    if tombstone and tombstone - COUNTERS > NOW then
      return {0, tonumber(STAMP)}
    end
  end
  if vote and score <= NOW then
    vote, score = reap_votes(step)
  end
  local is_shared = vote and vote:byte() == SHARED
  local fits = not step.rest and (not vote or is_shared and waiter:byte() == SHARED)
  local holder, number, theirs
  if is_shared then
    local mine, ends = vote_of(waiter .. ':')
    if mine and ends > NOW then
      local _, its_number = mine:match(VOTE)
      return with_rests({1, tonumber(its_number), math.floor(ends) - NOW, tonumber(STAMP)}, step.rest)
    elseif mine then
      end_vote(mine, ends, 'expired', math.floor(ends))
    end
  elseif vote then
    holder, number, theirs = vote:match(VOTE)
    if holder == waiter then
      return with_rests({1, tonumber(number), math.floor(score) - NOW, tonumber(STAMP)}, step.rest)
    elseif vote:sub(1, #DONE) == DONE and waiter:find(WANTS_ONCE) then
      redis.call('ZREM', QUEUE, waiter)
      return with_rests({5, tonumber(number), math.floor(score) - NOW, tonumber(STAMP)}, step.rest)
    end
  end
  if fits then
    holder, theirs = first_alive(step)
    fits = not step.rest -- else more dead waiters are in front of it
  end
  local order = holder and ticket - theirs
  local before = not holder or order < 0 or order == 0 and waiter <= holder
  if fits and before then
    redis.call('ZREM', QUEUE, waiter)
    return {1, tonumber(cast_vote(waiter, ticket, ttl, proposal)), tonumber(ttl), tonumber(STAMP)}
  end
  local were_dead
  if waits then
    if most > 0 and redis.call('ZCARD', QUEUE) >= most and not redis.call('ZSCORE', QUEUE, waiter) then
      remove_dead(step.asker, STAMP, CHECKS_IF_FULL)
      local waiting = redis.call('ZCARD', QUEUE)
      if waiting >= most then
        if is_shared then
          vote_next(step, true, nil, false, proposal) -- dead waiters may have blocked others
        end
        return with_rests({3, waiting, tonumber(STAMP)}, step.rest)
      end
    end
    local is_new = redis.call('ZADD', QUEUE, ticket, waiter) == 1
    redis.call('PEXPIRE', QUEUE, QUEUE_LASTS)
    were_dead = is_new and remove_dead_sample(ticket, step.asker)
    if is_shared and waiter:byte() ~= SHARED then
      inquire_shared(step, waiter, ticket, '-inf', 0)
    elseif vote and not is_shared and before then
      local client = holder:match(CLIENT)
      if client ~= RESERVED then
        push(holder, client, 'i ' .. holder .. ' ' .. number .. ' ' .. VOTES)
      end
    end
  end
  if fits or were_dead and is_shared then -- dead waiters may have blocked others
    local fresh, claim = vote_next(step, vote, waiter, false, proposal)
    if fresh then
      return with_rests({1, tonumber(fresh), tonumber(claim), tonumber(STAMP)}, step.rest, step.inquiry)
    end
    vote, score = first_vote()
  end
  local left = vote and math.max(0, math.floor(score) - NOW) or 0
  if waits then
    local place = redis.call('ZRANK', QUEUE, waiter) == 0 and 1 or 2
    return with_rests({2, left, place, tonumber(STAMP)}, step.rest, step.inquiry)
  elseif step.rest then
    return with_rests({2, -1, 0, tonumber(STAMP)}, step.rest)
  end
  local reply = busy(left, vote)
  return {2, left, 0, tonumber(STAMP), reply[3], reply[4]}
end
