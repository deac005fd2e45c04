-- new_step(asker): what the functions of one call share, and pass on as `step`:
--   asker        the client that is answered now: it is alive, whether or not it listens; nil: none
--   reply_to     the client whose first push goes with the reply, which is faster; nil: none
--   floor        the highest fence that has ended in this call: the next one is above it
--   used, limit  how many permits are taken, and how many there are; nil until `read_permits`
--   passing      how many more waiters of a full group may enter
--   bucket       of a rate limit, see `read_bucket`; nil until that
--   moved_up     whether a waiter of a rate limit has left without an entry
--   rest         what is left to another call, see `with_rest`; nil: nothing
--   front        how many waiters are in front of those that are left to another call; nil if none are
local function new_step(asker)
  return {asker = asker, floor = 0, passing = 0}
end
