-- A copy of a command that comes after its time (its last argument, µs; 0: none) may be of something
-- that was given up since, or done by another copy and undone. It must not take, prolong, count or
-- queue anything, so this stands before the first write.
if ARGV[#ARGV] ~= '0' and stamp - ARGV[#ARGV] > 0 then
  return redis.error_reply('LATE ' .. stamp)
end
