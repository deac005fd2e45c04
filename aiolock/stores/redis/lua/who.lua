-- who: what a client says of itself, where a script that shows it runs on another node of a cluster.
-- Writes nothing.
--
-- KEYS  1 where the client says who it is
-- returns  its process, or ''
return redis.call('GET', KEYS[1]) or ''
