-- present_vote(): the vote that is out, and its score; nil if there is none, apart from the set's other members.
local function present_vote()
  local first = redis.call('ZRANGE', VOTES, 0, 0, 'WITHSCORES')
  local score = tonumber(first[2])
  if score and score < COUNTERS then
    return first[1], score
  end
end
