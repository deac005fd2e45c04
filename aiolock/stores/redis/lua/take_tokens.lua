-- take_tokens(step, waiter): takes the tokens of this waiter, which are there. That is remembered, so a waiter that
-- asks again gets no others; two of those that are remembered for long enough go with it. Returns in how many µs the
-- bucket is full, as text, in place of a fence.
--@include read_bucket
--@include keep
local function take_tokens(step, waiter)
  local kept, number, declared = waiter:match(TOKENS)
  local bucket = read_bucket(step, declared)
  bucket.full_at = bucket.full_at + number * bucket.interval
  local old = redis.call('ZRANGEBYSCORE', HOLDERS, GRANTED, GRANTED + NOW, 'LIMIT', 0, 2)
  if old[1] then
    redis.call('ZREM', HOLDERS, old[1], old[2] or old[1])
  end
  redis.call('ZADD', HOLDERS, string.format('%.0f', COUNTERS + bucket.full_at), 'tat', GRANTED + NOW + kept, waiter)
  local left = bucket.full_at - STAMP
  keep(math.max(math.ceil(left / 1000), tonumber(kept)) + KEPT, 1000)
  return string.format('%.0f', left)
end
