-- quorum/names: the constants of the scripts of a server that votes, in addition to those of `names`.
--
-- The votes are a sorted set of `<waiter>:<number>:<ticket>:<when it was given (ms)>`: of one member, or of several
-- whose waiters share (s). The score is when the lease ends (ms), plus UNCONFIRMED until the waiter has confirmed that
-- it is inside. The set also has tombstones, as among the holders of a single server, and the count of `post`. If work
-- to be done once is done, the vote is a done marker for as long as that is remembered: its waiter is DONE, and its
-- number the fence of the grant that did it. The queue is a sorted set of waiters, scored by ticket. A waiter has the
-- same ticket at all servers of a quorum, so all queues have the same order.
--@include names
local VOTES = KEYS[1]
local LAST = KEYS[3] -- the highest number known here
local CONFIG = KEYS[4] -- of the quorum: `<run> <votes from (ms)> <config>`
local VOTE = '^(.*):(%d+):(%-?%d+):(%d+)$'
local FLAGS_COUNT_CLIENT = '^s(%a*)%d+%^(%d+)[^:]*:([^:]+):' -- of a waiter for a count
