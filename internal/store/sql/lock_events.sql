-- Waits out the writers and holds new ones off, for as long as it takes to read a position after a break of the counters.
-- Takes SHARE on the events table and its leaves, which conflicts with every INSERT: set lock_timeout before.
LOCK TABLE :"events_schema".:"events_table" IN SHARE MODE;
