-- count_reached(count, behind): removes waiters from the queue whose count is reached, and pushes that to their
-- clients: of those behind that ticket ('-inf': of all), as many as one call looks at. Returns what is left to another
-- call; nil if nothing is.
--@include remove_part
--@include listens
--@include push
local function count_reached(count, behind)
  local last = remove_part(function(waiter)
    local flags, number, client = waiter:match(FLAGS_COUNT_CLIENT)
    if not number or tonumber(number) > count then
      return false
    end
    if listens(client, flags) then
      push(waiter, client, 'g ' .. waiter .. ' ' .. number .. ' ' .. COUNTED .. ' ' .. STAMP .. ' ' .. VOTES)
    end
    return true
  end, behind)
  return last and {'c', last}
end
