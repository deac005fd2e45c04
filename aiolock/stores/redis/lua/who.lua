-- who: the metadata of a client, for a script on another node of a cluster that shows it.
-- Writes nothing.
--
-- KEYS  1 where the client writes its metadata
-- returns  its process, or ''
return redis.call('GET', KEYS[1]) or ''
