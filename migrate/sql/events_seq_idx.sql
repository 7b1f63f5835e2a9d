-- The only index: every read walks it. Each further b-tree costs 4 to 8 microseconds per insert.
CREATE INDEX ON :"events_schema".:"events_table" (seq);
