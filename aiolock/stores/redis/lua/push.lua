-- push(text, client, message): publishes a message to the client of that waiter or grant (`text`). If the text has a
-- tag (#), it first goes to the shard channel of a slot, and so stays in the shard. If that slot, or this name, has
-- moved to another node, no client receives it there: then it goes to the plain channel, the only one of which
-- `listens` counts the subscribers. Returns how many on this server have received it, or the error.
-- pcall: if an ACL forbids it by now, a waiter finds its grant when it asks again.
local function push(text, client, message)
  local tag = text:find('#', 1, true) and text:match(TAG)
  if tag then
    local receivers = redis.pcall('SPUBLISH', CHANNELS .. '{' .. tag .. '}:' .. client, message)
    if receivers ~= 0 and type(receivers) == 'number' then
      return receivers
    end
  end
  return redis.pcall('PUBLISH', CHANNELS .. client, message)
end
