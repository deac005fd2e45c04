-- busy(lease_left, holder): the reply to a waiter that does not wait: when the first lease ends (ms), the
-- grant with that lease, and its client's metadata.
local function busy(lease_left, holder)
  local client = holder and holder:match(CLIENT)
  if not client or client == RESERVED then
    return {0, lease_left}
  end
  local key = CHANNELS:gsub('push:$', 'client:') .. client
  local metadata = redis.pcall('GET', key) -- pcall: it is in another slot than our keys
  return {0, lease_left, holder, type(metadata) == 'string' and metadata or ''}
end
