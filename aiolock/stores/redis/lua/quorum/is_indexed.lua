-- is_indexed(last): whether all shared votes are in the index, if this is the last number (as text, or false).
local function is_indexed(last)
  local complete = last and redis.call('ZSCORE', VOTES, INDEX_COMPLETE)
  return complete and complete - COUNTERS == tonumber(last)
end
