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
--   `used`      how many permits are taken
--   `limit`     how many permits there are, or the number that was declared
--   `declared`  another number that may be declared since a `resize`
--   `count`     the count (see `post`)
--   `t:…`       a token that was counted, so that it is not counted again
--   `!…`        a tombstone: given up or done, while copies may still come; its score is COUNTERS and
--               until when, so from TOMBSTONES on (see `leave_tombstone`)
--   `!`         nothing: it keeps the key from vanishing in the middle of a script, see `with_placeholder`
local HOLDERS = KEYS[1]
local QUEUE = KEYS[2]
local FENCE = KEYS[3]
local UNCONFIRMED = 0.5
local COUNTERS = 1e15
local TOMBSTONES = 1.001e15
local QUEUE_LASTS = 300000 -- ms since a waiter last asked

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
local RULE_NUMBER_DECLARED = '^s%a*%d+([*&^])(%d+)/?(%d*)'
local PERMITS = '^s%a*%d+%*(%d+)'
local HAS_TERMS = '^%a+%d+[^:+~@]*[+~@]'
local MODE_RULE_TERMS_FENCE = '^(%a)%a*%d+([^:+~@]*)([+~@][^:]+):[^:]+:%d+:(%d+)$'
local PRIORITY_OF = '^[^:]*!(%-?%d+)'
local WANTS_ONCE = '^x%a*o'
local DOWNGRADES = '^x%a*d'
local TAG = '^[^:]*#(%w+)' -- of a slot in which its client has a channel, see `push`
local FENCE_OF = '%d+$'
