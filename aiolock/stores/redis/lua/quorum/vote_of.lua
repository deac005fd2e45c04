-- vote_of(begins): the vote whose text begins so (its waiter and ':'), and its score; nil if there is none.
-- Nearly always it is the only vote: several are out only if they are shared. Then it is found by the index.
--@include count_up_to
--@include rank
--@include quorum/first_vote
--@include quorum/is_indexed
local function vote_of(begins)
  local vote, score = first_vote()
  if not vote or vote:sub(1, #begins) == begins then
    return vote, score
  elseif vote:byte() ~= SHARED then
    return
  end
  local entry = '@' .. begins
  local at = rank(INDEX) + count_up_to(entry, INDEX)
  local found = redis.call('ZRANGE', VOTES, at, at)[1]
  while found and found:sub(1, #entry) == entry do
    vote = found:sub(2)
    score = redis.call('ZSCORE', VOTES, vote)
    if score then
      return vote, tonumber(score)
    end
    redis.call('ZREM', VOTES, found) -- a client of an earlier version has removed the vote
    found = redis.call('ZRANGE', VOTES, at, at)[1]
  end
  if is_indexed(redis.call('GET', LAST)) then
    return
  end
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', VOTES, '-inf', '(' .. COUNTERS)) do
    if other:find(begins, 1, true) == 1 then -- makes no string, of which there would be many
      return other, tonumber(redis.call('ZSCORE', VOTES, other))
    end
  end
end
