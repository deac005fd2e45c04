-- vote_left(): what `first_vote` returns, after a vote was removed. With the last shared one the index ends.
--@include quorum/first_vote
local function vote_left()
  local vote, score = first_vote()
  if not vote then
    redis.call('ZREM', VOTES, INDEX_COMPLETE)
  end
  return vote, score
end
