-- names: the constants of the scripts. Each is put in where it is named before a script is sent (see
-- `_scripts.py`), so that a name costs nothing. Beside these, a function uses what it is given, what it
-- includes, STAMP and NOW (see `clock`), and CHANNELS, the prefix of the clients' channels.
--
-- The holders are a sorted set. A grant is `<waiter>:<fence>`; its score is when the lease ends (ms),
-- and UNCONFIRMED more where that lease is the claim of a pushed grant, until a renewal writes another.
-- Beside its grants it keeps members whose score is a number of another kind, above COUNTERS, where
-- no lease ever ends: so they expire with the grants, and with nothing else. There is none for a lock
-- that nobody shares, but for what was given up.
--   `<waiter>`  the fence of its grant, for whoever asks again, among however many holders
--   `used`      how many permits are taken
--   `limit`     how many of them there are, or what number was declared; `declared` another
--               that may be declared since somebody set it
--   `count`     what has been counted (see `post`)
--   `t:…`       what was counted once, so that it is not again
--   `!…`        what was given up, or is done, of which copies may still come: from TOMBSTONES on,
--               COUNTERS and until when (see `give_up`)
--   `!`         nothing: it keeps the key from vanishing in the middle of a script, see `anchored`
local HOLDERS = KEYS[1]
local QUEUE = KEYS[2]
local FENCE = KEYS[3]
local UNCONFIRMED = 0.5
local COUNTERS = 1e15
local TOMBSTONES = 1.001e15
local PRIORITY = 1e14 -- how much higher a ticket is for each step of `Form.priority`
local RUN = 64 -- how many grants a client may be ahead of the server, see `pass`
local QUEUE_LASTS = 300000 -- ms since somebody came
local KEPT = 60000 -- ms for which the holders are kept behind the end of a lease: so that it is
-- reaped, and its client told, rather than forgotten

-- How a waiter is written down, which `_codec.py` does: what can be read of it, and of its grants. A
-- client of a later version may write more, so each of these passes over what it does not know.
local EXCLUSIVE = 120 -- the first byte: x
local SHARED = 115 -- s
local NOBODY = '-' -- the client of a grant that only keeps others out, see `close`
local ANCHOR = '!'
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
local TAG = '^[^:]*#(%w+)' -- of a slot in which its client has a channel, see `tell`
local FENCE_OF = '%d+$'
