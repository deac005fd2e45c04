-- with_rest(reply, rest, ...): the reply of a script that has left work to another call, since it would block all
-- other clients for too long: each `rest` is what that is, for `go_on`; nil if there is none.
--   a           grant the lock to the waiters at the head of the queue
--   %           the same, by a script without the keys for it: the first waiter has a share
--   c, ticket   the same, for a count that was raised: to those behind that ticket
--   s, ticket, grants…  remove the waiters of stuck clients behind that ticket, and then grant the lock
--   o, ticket   remove the waiters behind that ticket whose work is done
-- The client that gets the reply makes that call. If it dies before, the next call of anyone goes on with the
-- head of the queue.
local function with_rest(reply, rest, ...)
  if not rest then
    return reply
  end
  local stem = HOLDERS:sub(1, -#'holders' - 1)
  return {'rest', reply, {HOLDERS, QUEUE, FENCE, stem .. 'line', stem .. 'shares', CHANNELS}, rest, ...}
end
