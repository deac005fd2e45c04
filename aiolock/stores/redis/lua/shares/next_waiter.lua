-- next_waiter(head): the waiter that is next, and its ticket, if the queue begins with this one. Without a share, that
-- is the head itself; otherwise the first waiter of the share that is next, of the same priority. The ticket is nil if
-- nothing is known of that: then it is the head, too.
--@include account_of
--@include shares/read_account
--@include shares/write_account
--@include shares/look
--@include shares/others_wait
--@include shares/forget_starts
local function next_waiter(head)
  local _, priority, _, permits = account_of(head)
  if not priority then
    return head
  end
  local from, stale = priority * OF_PRIORITY, 0
  while stale < PART / 4 do
    local first = redis.pcall('ZRANGE', SHARES, from, '(' .. from + OF_PRIORITY, 'BYSCORE', 'LIMIT', 0, 1)[1]
    if not first then
      return head
    end
    local ticket, account = first:sub(19, 34), first:sub(36)
    for _, waiter in ipairs(redis.pcall('ZRANGEBYSCORE', QUEUE, ticket, ticket)) do
      if account_of(waiter) == account then
        return waiter, ticket
      end
    end
    -- It has left the queue by a script that does not know of shares, and so may others of its share.
    local a = read_account(account, priority, permits)
    if a.member ~= first then
      redis.pcall('ZREM', SHARES, first)
    end
    local entry = look(a)
    while entry and stale < PART / 4 and tonumber(redis.call('ZSCORE', QUEUE, entry:sub(#account + 19)) or 0) ~= a.ticket do
      redis.pcall('ZREM', LINE, entry)
      entry, stale = look(a), stale + 1
    end
    stale = stale + 1
    if entry or others_wait(a) then
      write_account(a)
    else
      forget_starts(a)
    end
  end
  return head
end
