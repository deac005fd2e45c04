-- make_fence: a fence that is higher than any before of this name, without a grant.
--
-- KEYS  1 holders  2 queue  3 fence
-- returns  the fence
--@include names
--@include clock
--@include next_fence

return tonumber(next_fence(0))
