-- Expects p and logging: whether the queue's log is on. Sets log, nil when it is off.
local log
-- [log_function]
-- [end]
