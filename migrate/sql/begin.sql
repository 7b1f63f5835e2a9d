-- Settings of the role must not matter: timeouts would break off the wait below, and strings are written in the
-- standard way.
SET LOCAL lock_timeout = 0;
SET LOCAL statement_timeout = 0;
SET LOCAL standard_conforming_strings = on;

-- One migration at a time in this database: CREATE ... IF NOT EXISTS fails when two of them overlap. All other locks
-- are on new tables, so nobody else waits.
SELECT pg_advisory_xact_lock(hashtextextended('commitrelay migrate', 0));
