-- clock: the server's time, STAMP (µs, as text: as a number it would be rounded) and NOW (ms).
local time = redis.call('TIME')
local STAMP = time[1] .. (#time[2] == 6 and time[2] or ('00000' .. time[2]):sub(-6))
local NOW = math.floor(STAMP / 1000)
