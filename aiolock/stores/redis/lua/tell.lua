-- tell(text, client, push): pushes to the client of that waiter, or grant. If the text has a tag (#), first
-- on the channel of a slot, where the push stays in the shard. No one may hear it there, because that slot,
-- or this name, has moved to another node: then on the plain channel. Only that one is asked who is alive,
-- see `listens`. Returns how many heard it on this server, or the error.
-- pcall: if an ACL forbids it by now, a waiter finds its grant when it asks again.
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
