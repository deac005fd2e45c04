-- inquire_shared(step, waiter, ticket, from, skip): the votes are shared, and this waiter does not share: asks the
-- waiters with votes that come behind it to yield them; not too many in one call, in the order in which their leases
-- end. `from`, `skip`: from which score on, and how many of those with that score were asked before. The others are left
-- to another call: `step.inquiry` says so.
--@include push
local function inquire_shared(step, waiter, ticket, from, skip)
  local votes = redis.call('ZRANGEBYSCORE', VOTES, from, '(' .. COUNTERS, 'WITHSCORES', 'LIMIT', skip, PART + 1)
  for i = 1, math.min(#votes, 2 * PART), 2 do
    local holder, number, theirs = votes[i]:match(VOTE)
    local client, order = holder:match(CLIENT), ticket - theirs
    if client ~= RESERVED and (order < 0 or order == 0 and waiter <= holder) then
      push(holder, client, 'i ' .. holder .. ' ' .. number .. ' ' .. VOTES)
    end
  end
  if votes[2 * PART + 1] then
    step.inquiry = {'i', votes[2 * PART], votes[2 * PART - 1], waiter, ticket}
  end
end
