-- quorum/recall: whether work that is to be done once is done, and whether this server would know. Writes nothing.
--
-- KEYS  1 votes  2 line  3 last number  4 marker
-- returns  {fence of the grant that did it (0: none is known), for how long that is remembered (ms),
--           how long ago the server forgot what it knew, at least (ms; less than 0: it never did), now (µs)}
--@include quorum/names
--@include clock
--@include quorum/present_vote

local marker = redis.call('GET', MARKER)
local from = marker and tonumber(marker:match('^%S+ (%d+)')) or NOW
local forgot = from > 0 and math.max(0, NOW - from) or -1
local vote, score = present_vote()
if vote and score > NOW and vote:sub(1, #DONE) == DONE then
  local _, number = vote:match(VOTE)
  return {tonumber(number), math.floor(score) - NOW, forgot, tonumber(STAMP)}
end
return {0, 0, forgot, tonumber(STAMP)}
