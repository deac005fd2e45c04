-- quorum/query_done: the done marker of work that is to be done once, and whether this server may have forgotten one.
-- Writes nothing.
--
-- KEYS  1 votes  2 queue  3 last number  4 quorum config
-- returns  {fence of the grant that did it (0: none is known), for how long that is remembered (ms),
--           how long ago the server lost its memory, at least (ms; less than 0: it never did), now (µs)}
--@include quorum/names
--@include clock
--@include quorum/first_vote

local marker = redis.call('GET', CONFIG)
local from = marker and tonumber(marker:match('^%S+ (%d+)')) or NOW
local forgot = from > 0 and math.max(0, NOW - from) or -1
local vote, score = first_vote()
if vote and score > NOW and vote:sub(1, #DONE) == DONE then
  local _, number = vote:match(VOTE)
  return {tonumber(number), math.floor(score) - NOW, forgot, tonumber(STAMP)}
end
return {0, 0, forgot, tonumber(STAMP)}
