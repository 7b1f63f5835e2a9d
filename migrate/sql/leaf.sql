-- One slot of the wheel. Autovacuum has nothing to do on an insert-only leaf that is emptied by TRUNCATE,
-- and would keep that TRUNCATE from its lock.
CREATE TABLE :"events_schema".:"leaf" PARTITION OF :"events_schema".:"events_table" FOR VALUES IN (:slot)
    WITH (autovacuum_enabled = false, toast.autovacuum_enabled = false);
