-- read_account(account, priority, permits): what is known of an account, and of its priority:
--   start           when its next grant starts, in virtual time
--   ticket, weight  of its first waiter; the ticket is nil if none waits
--   weighted        whether that weight is written down
--   member          its member among those that wait; nil if it is none of them
--   ahead           whether it is one of those without waiters that are ahead of the virtual time
--   count           how many these are
--   now             the virtual time: the latest start of a grant
--   new             whether nothing is known, so that the key may be new
--   counts          whether it is of a semaphore, of which waiters take `permits`
local function read_account(account, priority, permits)
  local known = redis.pcall('ZMSCORE', SHARES, 's' .. account, 't' .. account, 'w' .. account, '-' .. account,
    'v' .. priority, 'n' .. priority)
  local start, ticket, weight, ahead, now, count = known[1], known[2], known[3], known[4], known[5], known[6]
  local a = {account = account, priority = priority, counts = permits > 0, ticket = tonumber(ticket)}
  a.start = start and start - NUMBERS or ahead and ahead + LOWEST - priority * STARTS or 0
  a.weight, a.weighted = weight and weight - NUMBERS or 1000, weight and true
  a.member = ticket and string.format('%%%016.0f:%016.0f:', a.start, a.ticket) .. account
  a.ahead, a.count = ahead and true or false, count and count - NUMBERS or 0
  a.now, a.new = now and now - NUMBERS or 0, not (ticket or ahead or now)
  return a
end
