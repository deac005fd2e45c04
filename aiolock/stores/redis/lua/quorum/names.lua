-- quorum/names: the constants of the scripts of a server that votes, beside those of all (see `names`).
--
-- The votes are a sorted set: `<waiter>:<number>:<ticket>:<when it was given (ms)>`, of one member, or of several
-- whose waiters share (s); the score of each is when its lease ends (ms), and UNCONFIRMED more until its waiter has said that it is inside.
-- Beside it the set keeps what was given up, as among the holders of a single server, and what `post`
-- has counted. Where something is done that is to be done once, the vote is nobody's for so long: its waiter
-- is DONE, and its number the fence of whoever did it. The line is a sorted set of those who wait, by their tickets. All lines of a quorum have
-- the same tickets, so they have the same order.
--@include names
local VOTES = KEYS[1]
local LINE = KEYS[2]
local LAST = KEYS[3] -- the highest number that is known
local MARKER = KEYS[4] -- of what this server is a member: `<run> <votes from (ms)> <charter>`
local VOTE = '^(.*):(%d+):(%-?%d+):(%d+)$'
local FLAGS_COUNT_CLIENT = '^s(%a*)%d+%^(%d+)[^:]*:([^:]+):' -- of who waits for a count
local COUNTED = 31536000000 -- ms, a year: what was counted is, for whoever waits for that
local LOOKED_AT = 128 -- so many in line, at most, are looked at for others
local KEEP_ALIVE = 60000 -- ms after which to ask again where no lease will end
local REMEMBERED = 600000 -- ms for which the last number is known, behind the end of a lease
