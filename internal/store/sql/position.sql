-- Reads a position: the sequence's value, the low 32 bits of the next transaction id, and a snapshot older than both.
-- Run it alone and autocommitted: in a transaction that has an id, or has called age() before, age() answers with that
-- moment's id, and a snapshot leaves out its own. The function stands in FROM because that is evaluated before the target
-- list. It returns NULL before the first number, and on newer versions without a right to the sequence. Never read last_value instead: for an instant it shows 32 more than was handed out.
-- Walks no index but the one-row table's; takes ACCESS SHARE on that table and locks the sequence's page for a moment.
SELECT coalesce(h, CASE WHEN has_sequence_privilege(:'sequence'::regclass, 'SELECT, USAGE') THEN 0 END),
       (age('3'::xid)::bigint + 3) & 4294967295,
       pg_current_snapshot()::text,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text,
       coalesce((SELECT id::text FROM :"schema".run), ''),
       :'sequence'::regclass::oid::bigint,
       pg_relation_filenode(:'sequence'::regclass)::bigint
FROM pg_sequence_last_value(:'sequence'::regclass) AS h;
