-- slots: which master of a cluster has which slots. Writes nothing.
--
-- KEYS  1 any key of a slot that this server has: some servers want one
-- returns  as CLUSTER SLOTS; nothing if there is no cluster, or we may not ask
local slots = redis.pcall('CLUSTER', 'SLOTS')
return slots.err and {} or slots
