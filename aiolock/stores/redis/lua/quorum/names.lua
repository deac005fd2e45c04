-- quorum/names: the constants of the scripts of a server that votes, in addition to those of `names`.
--
-- The votes are a sorted set of `<waiter>:<number>:<ticket>:<when it was given (ms)>`: of one member, or of several
-- whose waiters share (s). The score is when the lease ends (ms), plus UNCONFIRMED until the waiter has confirmed that
-- it is inside. The set also has tombstones, as among the holders of a single server, and the count of `post`. If work
-- to be done once is done, the vote is a done marker for as long as that is remembered: its waiter is DONE, and its
-- number the fence of the grant that did it. The queue is a sorted set of waiters, scored by ticket. A waiter has the
-- same ticket at all servers of a quorum, so all queues have the same order.
--
-- Each vote that is shared has an entry in an index, with scores above COUNTERS, as for a single server's counts:
--   `@<vote>`  its score is INDEX, so the server sorts the entries by text: a waiter's vote is found by its begin
--   `@`        its score is COUNTERS and the last number for which the index was complete: clients of an earlier
--              version make no entries, but each of their votes raises the last number. (They also remove no entries,
--              so one without a vote means nothing.)
--@include names
local VOTES = KEYS[1]
local LAST = KEYS[3] -- the highest number known here
local CONFIG = KEYS[4] -- of the quorum: `<run> <votes from (ms)> <config>`
local INDEX = 1.0005e15
local INDEX_COMPLETE = '@'
local VOTE = '^(.*):(%d+):(%-?%d+):(%d+)$'
local FLAGS_COUNT_CLIENT = '^s(%a*)%d+%^(%d+)[^:]*:([^:]+):' -- of a waiter for a count
