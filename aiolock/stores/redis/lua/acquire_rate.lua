-- acquire_rate(waiter, ticket, ttl, most): `acquire` of tokens (|), for which nobody holds anything. Returns the reply,
-- and the rest that is left (see `with_rest`), if any. The time until the tokens of a waiter are there is exact if
-- at most LOOKED_AHEAD wait before it; each of those behind them counts as one token.
--@include new_step
--@include differs
--@include read_bucket
--@include tokens_due
--@include take_tokens
--@include enqueue
--@include moved_up
--@include advance
--@include shares/next_waiter
local function acquire_rate(waiter, ticket, ttl, most)
  local step = new_step(waiter:match(CLIENT))
  local claim, number, declared = waiter:match(TOKENS)
  local asked_again, waits = ticket > 0, ticket >= 0
  local displaced = asked_again and 1 or 0
  number = tonumber(number)
  local known = redis.call('ZMSCORE', HOLDERS, 'used', 'limit', 'declared', waiter, '!' .. waiter,
    'tat', 'outdated', 'told')
  if known[5] and known[5] - COUNTERS > NOW then
    return {0, 0}
  end
  local other = differs(step, declared, known)
  if other then
    return {5, other}
  end
  local bucket = read_bucket(step, declared, {known[6], known[7], known[8]})
  if known[4] and known[4] - GRANTED > NOW then
    return {1, math.max(bucket.full_at - STAMP, 1), tonumber(claim), 0, 0}
  end

  local function due()
    return tokens_due(step, number, declared, 0) <= tonumber(STAMP)
  end
  local function takes()
    return {1, tonumber(take_tokens(step, waiter)), tonumber(ttl), displaced}, step.rest
  end
  local queue = redis.call('EXISTS', QUEUE) == 1
  if not queue and due() then
    return takes()
  end
  local full
  if waits then
    -- A newcomer may remove dead waiters: then those behind them come earlier than they were told.
    local may_remove = not asked_again and (most > 0 or STAMP % LOOKERS == 0)
    local waiting = may_remove and not redis.call('ZSCORE', QUEUE, waiter) and redis.call('ZCARD', QUEUE)
    ticket, displaced = enqueue(waiter, step.asker, ticket, most)
    full = not ticket and {3, displaced}
    if waiting and redis.call('ZCARD', QUEUE) < waiting + (full and 0 or 1) then
      moved_up(step, waiter)
    end
  end
  -- Whoever asks lets all take their tokens that are there by now.
  local fence = advance(step, nil, waiter, ttl)
  if fence then
    return {1, tonumber(fence), tonumber(ttl), displaced}, step.rest
  elseif full then
    return full, step.rest
  elseif not waits and queue and redis.call('EXISTS', QUEUE) == 0 and due() then
    return takes() -- all others have theirs, or were dead
  end

  local rank = redis.call('ZRANK', QUEUE, waiter) or redis.call('ZCARD', QUEUE)
  local before = rank
  if rank > 0 then
    for _, each in ipairs(redis.call('ZRANGE', QUEUE, 0, math.min(rank, LOOKED_AHEAD) - 1)) do
      local _, wanted = each:match(TOKENS)
      before = before + (wanted or 1) - 1
    end
  end
  if SHARES then
    local head = waits and redis.call('ZRANGE', QUEUE, 0, 0)[1]
    local following = head and head:find('%', 1, true) and next_waiter(head)
    if following and following:match(CLIENT) == step.asker then -- its client asks for the one that is next
      local _, wanted = following:match(TOKENS)
      number, before = tonumber(wanted), 0
    end
  end
  local left = math.max(tokens_due(step, number, declared, before) - STAMP, 1)
  if step.rest then
    left = 0
  end
  if not waits then
    return {0, left > 0 and left or -1}, step.rest
  end
  return {2, ticket, rank + 1, math.ceil(left / 1000), tonumber(STAMP), displaced}, step.rest
end
