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
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', VOTES, '-inf', '(' .. COUNTERS)) do
    if other:find(begins, 1, true) == 1 then -- makes no string, of which there would be many
      return other, tonumber(redis.call('ZSCORE', VOTES, other))
    end
  end
end
