-- list: some keys of names that have holders or a queue (or votes, if the pattern is for those). Writes
-- nothing.
--
-- KEYS  1 any key of a slot that this server has: some servers want one
-- ARGV  1 where the last page ended, 0 at first  2 a pattern for all keys of a prefix
--       3 how many keys the server looks at: all other clients wait so long
-- returns  {where this page ends, 0 if it is the last, {key, …}}
local page = redis.pcall('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
if page.err then
  return redis.error_reply('NOSCAN ' .. page.err) -- a right that nothing else needs
end
local found = {}
for _, key in ipairs(page[2]) do
  if key:match('}:holders$') or key:match('}:queue$') or ARGV[2]:match(':votes$') then
    found[#found + 1] = key
  end
end
return {page[1], found}
