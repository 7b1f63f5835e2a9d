-- The slots of the wheel that take up room, whether or not a row in them is visible: the leaf, its size, what the role may do,
-- its latest turn, and its lowest and highest events. Oldest turns first.
-- An event's slot follows from the same expression (the default of the column slot). Rows of an earlier turn than the latest
-- one have been there for a whole round.
-- Walks the catalog's indexes and, once from each end, the index on seq of each leaf; takes ACCESS SHARE.
WITH wheel AS MATERIALIZED (
    SELECT slots, slot_seconds, date_part('epoch', now())::bigint / slot_seconds AS turn FROM :"schema".installation
), leaf AS MATERIALIZED (
    SELECT c.oid, n.nspname, c.relname,
           (regexp_match(pg_get_expr(c.relpartbound, c.oid), '^FOR VALUES IN [(]''?([0-9]+)''?[)]$'))[1]::smallint AS slot
    FROM pg_inherits AS h
    JOIN pg_class AS c ON c.oid = h.inhrelid
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE h.inhparent = :'events'::regclass
)
SELECT leaf.slot,
       leaf.oid::bigint,
       leaf.nspname::text,
       leaf.relname::text,
       pg_total_relation_size(leaf.oid),
       has_table_privilege(leaf.oid, 'TRUNCATE'),
       seen.hidden,
       rounds.ago = 0,
       extract(epoch FROM now() - turn.ended)::float8,
       coalesce(low.seq, 0),
       coalesce(high.seq, 0),
       CASE WHEN isfinite(low.created_at) THEN extract(epoch FROM now() - low.created_at) ELSE 0 END::float8,
       coalesce(low.created_at < turn.ended - make_interval(secs => wheel.slot_seconds + 1), false)
FROM leaf
JOIN wheel ON leaf.slot < wheel.slots
CROSS JOIN LATERAL (SELECT ((wheel.turn - leaf.slot) % wheel.slots + wheel.slots) % wheel.slots AS ago) AS rounds
CROSS JOIN LATERAL (SELECT to_timestamp((wheel.turn - rounds.ago + 1) * wheel.slot_seconds) AS ended) AS turn
CROSS JOIN LATERAL (
    -- Whether row level security may hide events from this role (see migrate/sql/row_security.sql).
    SELECT row_security_active(:'events'::regclass)
           AND NOT (coalesce(bool_or(polpermissive AND qual = 'true'), false) AND coalesce(bool_and(polpermissive OR qual = 'true'), true)) AS hidden
    FROM (SELECT polpermissive, pg_get_expr(polqual, polrelid) AS qual
          FROM pg_policy
          WHERE polrelid = :'events'::regclass AND polcmd IN ('r', '*')
            AND EXISTS (SELECT FROM unnest(polroles) AS r WHERE CASE r WHEN 0 THEN true ELSE pg_has_role(r, 'USAGE') END)) AS q
) AS seen
LEFT JOIN LATERAL (
    SELECT seq, created_at FROM :"events_schema".:"events_table" AS e WHERE e.slot = leaf.slot ORDER BY seq LIMIT 1
) AS low ON true
LEFT JOIN LATERAL (
    SELECT seq FROM :"events_schema".:"events_table" AS e WHERE e.slot = leaf.slot ORDER BY seq DESC LIMIT 1
) AS high ON true
WHERE pg_relation_size(leaf.oid) > 0
ORDER BY turn.ended, leaf.slot;
