"""``aiolock demo``: an online sale without a lock, with aiolock, and with redis-py's `Lock`.

Read it in this order: `shop` (what is sold, and where the stock is kept), `customers` (read, work,
write: all use of aiolock is there), `worker` and `crew` (several processes of customers), `kills`
(some are killed), `peer` (redis-py's `Lock`), `stage` and `story` (the acts), `figures` and `table`
(the results).
"""
