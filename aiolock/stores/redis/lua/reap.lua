-- reap(step, asking, own): ends grants whose lease has ended; not all at once if they are many, because all
-- others wait for this script. That of the waiter which is asking, `own` (nil: none), is among them. Returns
-- the holder that ends first of those that are left, with its score. If its lease has ended as well, the
-- first waiter is pushed to ask, as the asking one is by its answer: each goes on with them.
-- The clients of the ended grants are dead or stuck, so their waiters leave the queue too (so each such client
-- costs one claim, not one for each waiter). A push tells them, in case they still listen: then they come
-- back at their old places. If a lease was not to be renewed (f), its end means nothing; but the claim of a
-- pushed grant must be confirmed all the same.
--@include end_grant
--@include raise_fence
--@include remove_stuck
--@include push
local function reap(step, asking, own)
  local most, stuck = GRANTS, {}
  local function ends(grant, score)
    local claim = score % 1 == UNCONFIRMED
    end_grant(step, grant, 'expired', math.floor(score), claim)
    if claim or not (grant:match(FLAGS_CLIENT) or ''):find('f', 1, true) then
      stuck[#stuck + 1] = grant
    end
  end
  local own_score = own and tonumber(redis.call('ZSCORE', HOLDERS, own))
  if own_score and own_score <= NOW then
    ends(own, own_score)
    most = GRANTS - 1
  end
  local ended = redis.call('ZRANGEBYSCORE', HOLDERS, '-inf', NOW, 'WITHSCORES', 'LIMIT', 0, most)
  for i = 1, #ended, 2 do
    ends(ended[i], tonumber(ended[i + 1]))
  end
  raise_fence(step)
  if stuck[1] then
    remove_stuck(step, stuck, '-inf')
  end
  local left = redis.call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')
  if left[1] and tonumber(left[2]) <= NOW then
    -- pcall: a queue that has just become empty may be another node's, see `with_placeholder`.
    local first = redis.pcall('ZRANGE', QUEUE, 0, 0)[1]
    if first and first ~= asking then
      push(first, first:match(CLIENT) or first, 'd ' .. HOLDERS)
    end
  end
  return left
end
