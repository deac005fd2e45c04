-- vote_of(begins): the vote whose text begins so (its waiter and ':'), and its score; nil if there is none.
-- Nearly always it is the only vote: several are out only if they are shared.
--@include quorum/first_vote
local function vote_of(begins)
  local vote, score = first_vote()
  if not vote or vote:sub(1, #begins) == begins then
    return vote, score
  elseif vote:byte() ~= SHARED then
    return
  end
  local votes = redis.call('ZRANGEBYSCORE', VOTES, '-inf', '(' .. COUNTERS, 'WITHSCORES')
  for i = 3, #votes, 2 do
    if votes[i]:sub(1, #begins) == begins then
      return votes[i], tonumber(votes[i + 1])
    end
  end
end
