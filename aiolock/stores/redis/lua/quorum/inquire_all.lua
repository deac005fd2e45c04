-- inquire_all(waiter, ticket): asks all waiters behind this one that share for their votes; this one does not share.
--@include tell
local function inquire_all(waiter, ticket)
  for _, vote in ipairs(redis.call('ZRANGEBYSCORE', VOTES, '-inf', '(' .. COUNTERS)) do
    local holder, number, theirs = vote:match(VOTE)
    local client, order = holder:match(CLIENT), ticket - theirs
    if client ~= NOBODY and (order < 0 or order == 0 and waiter <= holder) then
      tell(holder, client, 'i ' .. holder .. ' ' .. number .. ' ' .. VOTES)
    end
  end
end
