-- tokens_due(step, number, declared, before): when so many tokens are there, after `before` others were taken (µs).
--@include read_bucket
local function tokens_due(step, number, declared, before)
  local bucket = read_bucket(step, declared)
  if number > bucket.burst then -- since a resize
    return STAMP + KEEP_ALIVE * 1000
  end
  return bucket.full_at + (before + number) * bucket.interval - bucket.tolerance
end
