-- reap_votes(step): removes the votes whose lease has ended, but not too many in one call. Their clients are gone or
-- stuck, so the clients' waiters leave the queue too, see `reap`. What is left to another call is in `step.rest`: that
-- also votes for the next waiters, as nobody gets a vote before, since a stuck client may be the first in the queue.
-- Returns the vote that is out then, and its score; nil if there is none.
--@include remove_stuck
--@include quorum/end_vote
--@include quorum/first_vote
--@include quorum/vote_left
local function reap_votes(step)
  local stuck, ended, vote, score = {}, 0, first_vote()
  while vote and score <= NOW and ended < GRANTS do
    local _, unsure = end_vote(vote, score, 'expired', math.floor(score))
    if unsure or not (vote:match(FLAGS_CLIENT) or ''):find('f', 1, true) then
      stuck[#stuck + 1] = vote
    end
    ended = ended + 1
    vote, score = vote_left()
  end
  if stuck[1] then
    remove_stuck(step, stuck, '-inf')
  end
  if vote and score <= NOW then
    step.rest = step.rest or {'a'}
  end
  return vote, score
end
