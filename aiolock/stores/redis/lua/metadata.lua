-- metadata: the metadata of one client. In a cluster it may be on another node than the lock of which a status is
-- read. Writes nothing.
--
-- KEYS  1 the client's key with its metadata
-- returns  its machine and process, as the client wrote them; '' if it wrote none
return redis.call('GET', KEYS[1]) or ''
