-- who: what a client says of itself, for a script on another node of a cluster that shows it.
-- Writes nothing.
--
-- KEYS  1 where the client writes who it is
-- returns  its process, or ''
return redis.call('GET', KEYS[1]) or ''
