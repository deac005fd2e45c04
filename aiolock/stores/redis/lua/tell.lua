-- tell(text, client, push): say this to the client of that waiter, or grant. Where the text has a tag (#),
-- first by the channel of a slot: what is said there stays in the shard. Nobody may hear it there, for the
-- slot has moved to another node, or this name has: then as to anybody else. Who is alive is not asked of
-- that channel, see `listens`. Returns how many heard it on this server, or the error.
-- pcall: where an ACL forbids it by now, a waiter finds its grant when it asks again.
local function tell(text, client, push)
  local tag = text:find('#', 1, true) and text:match(TAG)
  if tag then
    local heard = redis.pcall('SPUBLISH', CHANNELS .. '{' .. tag .. '}:' .. client, push)
    if heard ~= 0 and type(heard) == 'number' then
      return heard
    end
  end
  return redis.pcall('PUBLISH', CHANNELS .. client, push)
end
