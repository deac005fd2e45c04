-- first_vote(): the vote whose lease ends first, and its score; nil if no vote is out. The set has members that are no
-- votes, see `quorum/names`.
local function first_vote()
  local first = redis.call('ZRANGE', VOTES, 0, 0, 'WITHSCORES')
  local score = tonumber(first[2])
  if score and score < COUNTERS then
    return first[1], score
  end
end
