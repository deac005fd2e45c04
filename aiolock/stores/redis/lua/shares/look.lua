-- look(a): sets which waiter of this account is the first, from the waiters by account. Returns its entry there, if any.
--@include account_of
local function look(a)
  local account = a.account
  local entry = redis.pcall('ZRANGE', LINE, '[' .. account .. ':', '(' .. account .. ';', 'BYLEX', 'LIMIT', 0, 1)[1]
  if not entry then
    a.ticket = nil
    return nil
  end
  local _, _, weight = account_of(entry:sub(#account + 19))
  a.ticket, a.weight = tonumber(entry:sub(#account + 2, #account + 17)), weight or 1000
  return entry
end
