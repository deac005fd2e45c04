-- join(waiter, ticket, again): this waiter was put into the queue; `again`: or it was there, and has asked again. Then
-- what others have left behind is put right.
--@include account_of
--@include shares/read_account
--@include shares/write_account
--@include shares/look
--@include shares/recount
local function join(waiter, ticket, again)
  local account, priority, weight, permits = account_of(waiter)
  if not account then
    return
  end
  ticket = tonumber(ticket)
  redis.pcall('ZADD', LINE, 0, account .. string.format(':%016.0f:', ticket) .. waiter)
  redis.pcall('PEXPIRE', LINE, QUEUE_LASTS)
  if again and permits > 0 then
    recount()
  end
  local a = read_account(account, priority, permits)
  if not a.ticket then
    a.start = math.max(a.start, a.now) -- it has no credit for the time without a waiter
  end
  a.new = false -- the key gets its time below
  if again then
    look(a)
    write_account(a)
  elseif not a.ticket or a.ticket > ticket then
    a.ticket, a.weight = ticket, weight
    write_account(a)
  end
  redis.pcall('PEXPIRE', SHARES, QUEUE_LASTS)
end
