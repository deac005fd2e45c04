-- write_account(a, moved): writes down an account that was read and has changed; with `moved` the virtual time, too, and
-- how many are ahead of it.
local function write_account(a, moved)
  local account, put, gone, member = a.account, {}, {}, nil
  if a.ticket then
    member = string.format('%%%016.0f:%016.0f:', a.start, a.ticket) .. account
    local held = a.counts and redis.call('ZSCORE', HOLDERS, '%' .. account)
    held = held and math.floor((held - COUNTERS) * 1000000 / a.weight) or 0 -- for its weight
    put = {
      a.priority * OF_PRIORITY + math.min(held, OF_PRIORITY - 1), member,
      NUMBERS + a.start, 's' .. account, a.ticket, 't' .. account,
    }
    if a.weight ~= 1000 then
      put[7], put[8] = NUMBERS + a.weight, 'w' .. account
    elseif a.weighted then
      gone[1] = 'w' .. account
    end
  elseif a.member then
    gone = {'s' .. account, 't' .. account, 'w' .. account}
  end
  if a.member and a.member ~= member then
    gone[#gone + 1] = a.member
  end
  local ahead = not a.ticket and a.start > a.now
  if ahead then
    put = {a.priority * STARTS - LOWEST + a.start, '-' .. account}
  elseif a.ahead then
    gone[#gone + 1] = '-' .. account
  end
  local count = a.count + (ahead and not a.ahead and 1 or a.ahead and not ahead and -1 or 0)
  if moved then
    put[#put + 1], put[#put + 2] = NUMBERS + a.now, 'v' .. a.priority
  end
  if moved or count ~= a.count then
    put[#put + 1], put[#put + 2] = NUMBERS + math.min(count, MOST_AHEAD), 'n' .. a.priority
  end
  local unpacked = table.unpack or unpack -- where Lua 5.4 has it, and where 5.1 does
  if gone[1] then
    redis.pcall('ZREM', SHARES, unpacked(gone))
  end
  if put[1] then
    redis.pcall('ZADD', SHARES, unpacked(put))
  end
  if count > MOST_AHEAD then
    local from = a.priority * STARTS - LOWEST
    local least = redis.pcall('ZRANGE', SHARES, from, '(' .. from + STARTS, 'BYSCORE', 'LIMIT', 0, 1)[1]
    redis.pcall('ZREM', SHARES, least or '')
  end
  if a.new then
    redis.pcall('PEXPIRE', SHARES, QUEUE_LASTS)
  end
end
