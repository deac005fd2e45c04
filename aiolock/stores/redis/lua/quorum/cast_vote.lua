-- cast_vote(waiter, ticket, lease, proposal, kept, remembered, others): votes for this waiter; returns the number of
-- the vote, as text. It is the proposal, or the next number if that is higher, or if none is proposed ('0'). If the
-- last number is forgotten, the ticket takes its place, which is a time as well, or the number that the asker proposes
-- for itself, if that is higher; but not the clock of this server: if that were years ahead, all servers would have to
-- count from there.
--   kept, remembered  for how long (ms) the votes are kept, and the last number; nil: see `expiries`
--   others            the proposal of the asker, if that is another waiter; else nil
--@include quorum/expiries
--@include quorum/first_vote
--@include quorum/is_indexed
local function cast_vote(waiter, ticket, lease, proposal, kept, remembered, others)
  local number, last = proposal, nil
  if not kept then
    kept, remembered = expiries(waiter, lease)
  end
  if proposal == '0' then
    last = redis.call('GET', LAST)
    local asked = ticket - (waiter:match(PRIORITY_OF) or 0) * PRIORITY
    number = last or string.format('%.0f', math.max(asked, tonumber(others or 0)))
  else
    last = redis.call('SET', LAST, proposal, 'PX', remembered, 'GET')
  end
  if last and last - number >= 0 then
    number = string.format('%.0f', last + 1)
  end
  if number ~= proposal then
    redis.call('SET', LAST, number, 'PX', remembered)
  end
  local granted = STAMP:sub(1, -4) -- NOW, as text
  local vote = waiter .. ':' .. number .. ':' .. ticket .. ':' .. granted
  if waiter:byte() ~= SHARED then
    redis.call('ZADD', VOTES, NOW + lease + UNCONFIRMED, vote)
  elseif is_indexed(last) or not first_vote() then
    local complete = string.format('%.0f', COUNTERS + number)
    redis.call('ZADD', VOTES, NOW + lease + UNCONFIRMED, vote, INDEX, '@' .. vote, complete, INDEX_COMPLETE)
  else
    redis.call('ZADD', VOTES, NOW + lease + UNCONFIRMED, vote, INDEX, '@' .. vote)
  end
  redis.call('PEXPIRE', VOTES, kept)
  return number
end
