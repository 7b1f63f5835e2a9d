-- One migration at a time in this database: CREATE ... IF NOT EXISTS fails when two of them overlap. The other
-- locks here are on new tables, so nobody else waits. Timeouts set for the role would break off the wait.
SET LOCAL lock_timeout = 0;
SET LOCAL statement_timeout = 0;
SELECT pg_advisory_xact_lock(hashtextextended('commitrelay migrate', 0));
