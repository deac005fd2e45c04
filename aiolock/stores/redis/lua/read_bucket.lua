-- read_bucket(step, declared, known): sets `step.bucket`, once, to the bucket of a rate limit:
--   interval  µs from one token to the next   burst  how many are in the full bucket   tolerance  both together
--   full_at   when it is full again (µs), not before now   outdated, told  see `tell_first`
-- `declared` is the number of the rate that this waiter declares (see `Rate`). `known`: the scores of tat, outdated
-- and told, if those were read already.
--@include read_permits
--@include rate_of
local function read_bucket(step, declared, known)
  if step.bucket then
    return step.bucket
  end
  read_permits(step, declared)
  known = known or redis.call('ZMSCORE', HOLDERS, 'tat', 'outdated', 'told')
  local bucket = rate_of(step.limit)
  bucket.full_at = known[1] and known[1] - COUNTERS or 0
  bucket.outdated = known[2] and known[2] - COUNTERS or 0
  bucket.told = known[3] and known[3] - COUNTERS or 0
  -- If the clock was set back, it is empty now, at the worst; and not at each moment from now on.
  if bucket.full_at > STAMP + bucket.tolerance then
    bucket.full_at = STAMP + bucket.tolerance
    redis.call('ZADD', HOLDERS, string.format('%.0f', COUNTERS + bucket.full_at), 'tat')
  end
  bucket.full_at = math.max(bucket.full_at, tonumber(STAMP))
  step.bucket = bucket
  return bucket
end
