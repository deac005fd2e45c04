-- with_rests(reply, rest, other): the reply of a script that may have left work to one or two calls of
-- `quorum/go_on`, as `with_rest` for a single server; nil if there is none. Each is one of:
--   a                    end the leases that are over, and then vote for the first waiters in the queue
--   s, ticket, votes…    remove the waiters of stuck clients, which had these votes, behind that ticket; then as `a`
--   o, ticket            remove the waiters behind that ticket whose work is done
--   c, ticket            notify the waiters behind that ticket whose count is reached
--   i, lease end, vote, waiter, ticket   inquire for this waiter, behind that vote, which may be gone
local function with_rests(reply, rest, other)
  if not rest and not other then
    return reply
  end
  return {'rest of votes', reply, {VOTES, QUEUE, LAST, CONFIG, CHANNELS}, rest or other, rest and other}
end
