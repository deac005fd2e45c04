-- names: the constants of the scripts. Those that the client has too, such as PRIORITY, GRANTS and KEPT, come from
-- `_scripts.py`, `aiolock/protocol.py` and `_member.py`. Each is replaced by its value before a script is sent (see
-- `_scripts.py`), so a name costs nothing. Apart from these, a function uses only its parameters, its includes,
-- STAMP and NOW (see `clock`), and CHANNELS, the prefix of the clients' channels.
--
-- The holders are a sorted set. A grant is `<waiter>:<fence>`; its score is when the lease ends (ms),
-- plus UNCONFIRMED if that lease is the claim of a pushed grant, until a renewal writes another.
-- Beside its grants it has members whose score is a number of another kind, above COUNTERS, where no
-- lease ever ends: so they expire with the key of the grants, and only with that. A lock that is never
-- shared has none but tombstones.
--   `<waiter>`  the fence of its grant, so that it is found among many holders when it asks again
--   `used`      how many permits are taken, or the sum of the numbers with the rule `=`
--   `limit`     how many permits there are, or the number that was declared; from RATES on, it is a `Rate`
--   `declared`  another number that may be declared since a `resize`
--   `count`     the count (see `post`)
--   `%<account>`  how many permits a share holds, if any (see `account_of`)
--   `%`         when these were last counted anew (s, see `recount`)
--   `t:…`       a token that was counted, so that it is not counted again
--   `!…`        a tombstone: given up or done, while copies may still come; its score is COUNTERS and
--               until when, so from TOMBSTONES on (see `leave_tombstone`)
--   `tat`       when the bucket of a rate limit is full again (µs); `outdated`, `told`: see `tell_first`
--   `<waiter>`  of a rate limit, which holds nothing: it got tokens, and GRANTED and until when that is remembered
--   `!`         nothing: it keeps the key from vanishing in the middle of a script, see `with_placeholder`
local HOLDERS = KEYS[1]
local QUEUE = KEYS[2]
local FENCE = KEYS[3]
local UNCONFIRMED = 0.5
local COUNTERS = 1e15
local TOMBSTONES = 1.001e15
local RATES = 2251799813685248
local GRANTED = 6e15
local MANY = 1000000 -- the second number with the rule `=`: see aiolock/trees.py
local QUEUE_LASTS = 300000 -- ms since a waiter last asked

-- The order among waiters that have a share. A script is given these keys if it may need them; where it has none, the
-- lines under `if SHARES then` are left out before it is sent. All of it is an index: the waiters themselves stand in
-- QUEUE, in order of arrival. What is missing here, or was left behind by a script without these keys, or by a client
-- of an earlier version, costs order, and nothing else: `next_waiter` finds out what is stale, and each waiter that asks
-- again is put here again. So a write that fails does not matter: in a slot of a cluster that is being moved, a key that
-- vanished cannot be created again. Hence each call is a pcall.
--   LINE    the waiters by their accounts, all with the score 0: `<account>:<ticket, 16 digits>:<waiter>`
--   SHARES  `%<start, 16 digits>:<ticket, 16 digits>:<account>`, for each account with waiters: the ticket of the first
--           of them. Its score is OF_PRIORITY for each step of its priority, and what it holds for its weight: the
--           first is next, among equals by start, then by ticket. Its numbers have members of their own:
--           `s…` start, `t…` ticket, `w…` weight if it is not 1000
--           `-<account>`, for each without waiters that is ahead of the virtual time, scored by its start
--           `v<priority>`  the virtual time, the latest start of a grant; `n<priority>`  how many are ahead of it
local LINE = KEYS[4]
local SHARES = KEYS[5]
local OF_PRIORITY = 1e12
local NUMBERS = 1e14 -- is added to each number but a ticket
local STARTS = 4e14 -- how many starts there are for each priority
local LOWEST = 5.4e15 -- is taken off the score of one that is ahead

-- How a waiter is written down by `_codec.py`, and patterns for the parts of it and of its grants. A client
-- of a later version may write more, so each pattern passes over what it does not know.
local EXCLUSIVE = 120 -- the first byte: x
local SHARED = 115 -- s
local RESERVED = '-' -- the client of a grant that only keeps others out, see `close`
local DETACHED = 61 -- how the client of a detached grant begins: =
local PLACEHOLDER = '!'
local DONE = 'xfo0:-:' -- how such a grant begins that was left by `finish`
local CLIENT = '^%a+%d+[^:]*:([^:]+):'
local FLAGS_CLIENT = '^%a(%a*)%d+[^:]*:([^:]+):'
local MODE_FLAGS_CLAIM_RULE_CLIENT = '^(%a)(%a*)(%d+)([^:]?)[^:]*:([^:]+):'
local RULE_NUMBER_DECLARED = '^s%a*%d+([*&^|=])(%d+)/?(%d*)'
local TOKENS = '^s%a*(%d+)|(%d+)/(%d+)'
local PERMITS = '^s%a*%d+[*=](%d+)'
local COSTS = '^s%a*%d+[*|](%d+)' -- permits, or tokens of a rate
local SHARE_WEIGHT = '^[^:]*%%([%w_-]+)%$?(%d*)'
local HAS_TERMS = '^%a+%d+[^:+~@]*[+~@]'
local MODE_RULE_TERMS_FENCE = '^(%a)%a*%d+([^:+~@]*)([+~@][^:]+):[^:]+:%d+:(%d+)$'
local PRIORITY_OF = '^[^:]*!(%-?%d+)'
local WANTS_ONCE = '^x%a*o'
local DOWNGRADES = '^x%a*d'
local TAG = '^[^:]*#(%w+)' -- of a slot in which its client has a channel, see `push`
local FENCE_OF = '%d+$'
