-- One event, in a transaction that is rolled back: what do triggers leave of its xid and seq?
-- Takes the locks of any insert.
INSERT INTO :"events_schema".:"events_table" AS e (aggregate_type, aggregate_id, event_type, payload)
VALUES ('commitrelay', 'probe', 'Probe', '{}')
RETURNING e.xid = pg_current_xact_id(), e.seq = currval($1::oid::regclass);
