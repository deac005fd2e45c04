-- The server's clock: stamp (µs, as text: Lua would round it) and now (ms).
local time = redis.call('TIME')
local stamp = time[1] .. (#time[2] == 6 and time[2] or ('00000' .. time[2]):sub(-6))
local now = math.floor(stamp / 1000)
