-- leave(waiter, ticket): this waiter, which may be in the queue, is to be removed from it without a grant; `ticket`:
-- nil if it is not known. It costs its share nothing.
--@include account_of
--@include shares/read_account
--@include shares/write_account
--@include shares/look
--@include shares/others_wait
--@include shares/forget_starts
local function leave(waiter, ticket)
  local account, priority, _, permits = account_of(waiter)
  ticket = account and tonumber(ticket or redis.call('ZSCORE', QUEUE, waiter) or nil)
  if not ticket then
    return
  end
  redis.pcall('ZREM', LINE, account .. string.format(':%016.0f:', ticket) .. waiter)
  local a = read_account(account, priority, permits)
  if a.ticket ~= ticket then
    return
  end
  if look(a) or others_wait(a) then
    write_account(a)
  else
    forget_starts(a)
  end
end
