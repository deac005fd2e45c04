-- rank_again(account, priority): puts an account of a semaphore at its place among those that wait, if it waits, now
-- that it holds another number of permits.
--@include shares/read_account
--@include shares/write_account
local function rank_again(account, priority)
  local a = read_account(account, priority, 1)
  if a.ticket then
    write_account(a)
  end
end
