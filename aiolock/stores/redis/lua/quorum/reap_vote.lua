-- reap_vote(vote, score): removes a vote whose lease has ended. Its client is gone or stuck, so the client's waiters
-- leave the queue too, see `reap`.
--@include quorum/end_vote
local function reap_vote(vote, score)
  local client, unsure = end_vote(vote, score, 'expired', math.floor(score))
  if unsure or not (vote:match(FLAGS_CLIENT) or ''):find('f', 1, true) then
    for _, waiter in ipairs(redis.call('ZRANGE', LINE, 0, -1)) do
      if waiter:match(CLIENT) == client then
        redis.call('ZREM', LINE, waiter)
      end
    end
  end
end
