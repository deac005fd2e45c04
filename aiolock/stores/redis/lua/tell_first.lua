-- tell_first(step, asking): lets the first waiter of a rate limit ask, if it was told a later time than that of its
-- tokens. Its ticket is at most that of the last waiter at the time when one left without its tokens. `asking` is
-- answered now; each is notified once.
--@include push
--@include shares/next_waiter
local function tell_first(step, asking)
  local outdated, told = step.bucket and step.bucket.outdated, step.bucket and step.bucket.told
  if not outdated then
    local known = redis.call('ZMSCORE', HOLDERS, 'outdated', 'told')
    outdated, told = (known[1] or COUNTERS) - COUNTERS, (known[2] or COUNTERS) - COUNTERS
  end
  -- pcall: a queue that has just become empty may be another node's, see `with_placeholder`.
  local head = redis.pcall('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')
  local first, ticket = head[1], tonumber(head[2])
  if SHARES then
    if first and first:find('%', 1, true) then -- whoever is next may have been told any time
      local at
      first, at = next_waiter(first)
      ticket, outdated = tonumber(at or redis.call('ZSCORE', QUEUE, first)), math.huge
      if asking and asking:match(CLIENT) == first:match(CLIENT) and redis.call('ZSCORE', QUEUE, asking) then
        first = asking -- the answer to its client says it
      end
    end
  end
  if ticket and ticket <= outdated and ticket ~= told and first ~= asking then
    redis.call('ZADD', HOLDERS, string.format('%.0f', COUNTERS + ticket), 'told')
    push(first, first:match(CLIENT) or first, 'd ' .. HOLDERS)
  end
end
