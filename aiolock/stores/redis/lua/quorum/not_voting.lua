-- not_voting(): for how many ms this server does not vote, because it may have votes out that it has forgotten; less
-- than 0 if it has no quorum config, as after a FLUSHALL; nil if it votes.
local function not_voting()
  local marker = redis.call('GET', CONFIG)
  if not marker then
    return -1
  end
  local left = tonumber(marker:match('^%S+ (%d+)')) - NOW
  return left > 0 and left or nil
end
