"""``aiolock demo``: an online sale, first without a lock, then with one.

Read it in this order: `shop` (what is sold, and where the stock is kept), `customers` (read, work,
write: all the use of aiolock is there), `worker` and `crew` (several processes of them), `kills`
(some are killed), `stage` and `story` (the two acts), `figures` and `table` (what came of it).
"""
