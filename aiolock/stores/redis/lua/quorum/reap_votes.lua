-- reap_votes(): removes the votes whose lease has ended. Their clients are gone or stuck, so the clients' waiters leave
-- the queue too, see `reap`; it is looked through once, however many votes these are. Returns the vote that is out
-- then, and its score; nil if there is none.
--@include quorum/end_vote
--@include quorum/first_vote
local function reap_votes()
  local stuck
  local vote, score = first_vote()
  while vote and score <= NOW do
    local client, unsure = end_vote(vote, score, 'expired', math.floor(score))
    if unsure or not (vote:match(FLAGS_CLIENT) or ''):find('f', 1, true) then
      stuck = stuck or {}
      stuck[client] = true
    end
    vote, score = first_vote()
  end
  for _, waiter in ipairs(stuck and redis.call('ZRANGE', QUEUE, 0, -1) or {}) do
    if stuck[waiter:match(CLIENT)] then
      redis.call('ZREM', QUEUE, waiter)
    end
  end
  return vote, score
end
