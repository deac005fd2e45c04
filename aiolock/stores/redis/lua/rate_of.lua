-- rate_of(number): the rate for which a number stands (see `Rate`): its interval (µs), burst, and tolerance (µs).
local function rate_of(number)
  local width = 2 ^ (number % 32)
  local both = math.floor(number % 2 ^ 51 / 32)
  local rate = {interval = math.floor(both / width), burst = both % width}
  rate.tolerance = rate.interval * rate.burst
  return rate
end
