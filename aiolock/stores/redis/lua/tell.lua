-- tell(text, client, push): pushes to the client of that waiter or grant. If the text has a tag (#), the push
-- first goes to the channel of a slot, and so stays in the shard. If that slot, or this name, has moved to
-- another node, no client hears it there: then the push goes to the plain channel, for which alone `listens`
-- checks that the client is alive. Returns how many heard it on this server, or the error.
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
