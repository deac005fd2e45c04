-- resize_bucket(step, declared, limit): gives a rate limit another rate. As many tokens are missing in the bucket as
-- before, but never more than all; those who wait are told when theirs are there.
--@include read_bucket
--@include rate_of
local function resize_bucket(step, declared, limit)
  local before, bucket = read_bucket(step, declared), rate_of(limit)
  local missing = (before.full_at - STAMP) / before.interval
  bucket.full_at = STAMP + math.min(math.ceil(missing * bucket.interval), bucket.tolerance)
  local last = redis.pcall('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')[2]
  bucket.outdated, bucket.told = tonumber(last or before.outdated), before.told
  redis.call('ZADD', HOLDERS, string.format('%.0f', COUNTERS + bucket.full_at), 'tat',
    string.format('%.0f', COUNTERS + bucket.outdated), 'outdated')
  step.bucket = bucket
end
