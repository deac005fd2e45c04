-- inquire_shared(waiter, ticket): the votes are shared, and this waiter does not share: asks all waiters with votes
-- that come behind it to yield them.
--@include push
local function inquire_shared(waiter, ticket)
  for _, vote in ipairs(redis.call('ZRANGEBYSCORE', VOTES, '-inf', '(' .. COUNTERS)) do
    local holder, number, theirs = vote:match(VOTE)
    local client, order = holder:match(CLIENT), ticket - theirs
    if client ~= RESERVED and (order < 0 or order == 0 and waiter <= holder) then
      push(holder, client, 'i ' .. holder .. ' ' .. number .. ' ' .. VOTES)
    end
  end
end
