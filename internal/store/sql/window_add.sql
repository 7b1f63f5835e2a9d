-- Adds positions, from which new subscriptions begin. Walks the primary key; locks the new rows.
INSERT INTO :"schema".windows (id, snapshot, h, next_xid, bounds, floor, run)
SELECT w.id, w.snapshot::pg_snapshot, w.h, w.next_xid::xid8, w.bounds::jsonb, w.floor, w.run::jsonb
FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::text[])
    AS w (id, snapshot, h, next_xid, bounds, floor, run);
