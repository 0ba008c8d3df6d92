-- Expects p, id, state and g; sets misplaced: the job is in the set that its row's state names, so this
-- membership is a leftover.
local home = state == 'active' and 'active' or state == 'scheduled' and 'schedule' or state == 'dead' and 'dead'
    or state == 'pending' and (g and 'g:' .. g .. ':pending' or 'pending')
misplaced = home and redis.call('ZSCORE', p .. home, id)
