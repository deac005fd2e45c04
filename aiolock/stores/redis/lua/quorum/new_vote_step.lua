-- new_vote_step(asker): what the functions of one call share, and pass on as `step`:
--   asker    the client that is answered now: it is alive, whether or not it listens; nil: none
--   dead     how many dead waiters were removed at the head of the queue
--   rest     what is left to another call, see `with_rests`; nil: nothing. Until that is done, nobody gets a vote
--   inquiry  the inquiries that are left to another call; nil: none
local function new_vote_step(asker)
  return {asker = asker, dead = 0}
end
