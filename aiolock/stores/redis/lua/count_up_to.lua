-- count_up_to(grant, score): how many of the grants with this score, which the server sorts byte by byte,
-- come up to this one, there or not. Many have one score: readers that were let in together.
--@include rank
local function count_up_to(grant, score)
  local first, last = rank(score), rank('(' .. score)
  local low, high = first, last
  while low < high do
    local middle = math.floor((low + high) / 2)
    local other, at = redis.call('ZRANGE', HOLDERS, middle, middle)[1], 1
    while at <= #grant and other:byte(at) == grant:byte(at) do at = at + 1 end
    if (other:byte(at) or -1) > (grant:byte(at) or -1) then high = middle else low = middle + 1 end
  end
  return low - first
end
