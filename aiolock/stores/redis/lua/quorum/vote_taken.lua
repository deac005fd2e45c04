-- vote_taken(waiter, ticket, ttl, proposal, most, waits): `vote`, where there is a vote out, or a line. Returns
-- the reply.
--@include quorum/present_vote
--@include quorum/reap_vote
--@include quorum/first_of
--@include quorum/cast
--@include quorum/hand_vote
--@include remove_dead
--@include busy
--@include tell
local function vote_taken(waiter, ticket, ttl, proposal, most, waits)
  local asker = waiter:match(CLIENT)
  local vote, score = present_vote()
  if redis.call('ZCARD', VOTES) > (vote and 1 or 0) then
    local given_up = redis.call('ZSCORE', VOTES, '!' .. waiter)
    if given_up and given_up - COUNTERS > NOW then
      return {0, tonumber(STAMP)}
    end
  end
  if vote and score <= NOW then
    reap_vote(vote, score)
    vote, score = present_vote()
  end
  local holder, number, theirs
  if vote then
    holder, number, theirs = vote:match(VOTE)
    if holder == waiter then
      return {1, tonumber(number), math.floor(score) - NOW, tonumber(STAMP)}
    elseif vote:sub(1, #DONE) == DONE and waiter:find(WANTS_ONCE) then
      redis.call('ZREM', LINE, waiter)
      return {5, tonumber(number), math.floor(score) - NOW, tonumber(STAMP)}
    end
  else
    holder, theirs = first_of(asker)
  end
  local order = holder and ticket - theirs
  local before = not holder or order < 0 or order == 0 and waiter <= holder
  if not vote and before then
    redis.call('ZREM', LINE, waiter)
    return {1, tonumber(cast(waiter, ticket, ttl, proposal)), tonumber(ttl), tonumber(STAMP)}
  end
  if waits then
    if most > 0 and redis.call('ZCARD', LINE) >= most and not redis.call('ZSCORE', LINE, waiter) then
      remove_dead(asker)
      local waiting = redis.call('ZCARD', LINE)
      if waiting >= most then
        return {3, waiting, tonumber(STAMP)}
      end
    end
    redis.call('ZADD', LINE, ticket, waiter)
    redis.call('PEXPIRE', LINE, QUEUE_LASTS)
    local client = vote and holder:match(CLIENT)
    if vote and before and client ~= NOBODY then
      tell(holder, client, 'i ' .. holder .. ' ' .. number .. ' ' .. VOTES)
    end
  end
  if not vote then
    hand_vote(asker)
    vote, score = present_vote()
  end
  local left = vote and math.floor(score) - NOW or 0
  if waits then
    return {2, left, redis.call('ZRANK', LINE, waiter) == 0 and 1 or 2, tonumber(STAMP)}
  end
  local reply = busy(left, vote)
  return {2, left, 0, tonumber(STAMP), reply[3], reply[4]}
end
