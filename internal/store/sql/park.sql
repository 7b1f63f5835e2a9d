-- Parks events, or lays them down as dead ($5), whole and in the order given: $3 numbers, $4 ids, $6 attempts, $7 seconds
-- until the next one (NULL: none is due by itself), $8 reasons (NULL: it waits behind another), $9 topics.
-- In the same transaction as lanes_store.sql, which has checked the epoch ($10).
-- Returns whether the rows have come behind all that were there: ids keep the order of a key. They have not if the ids' sequence
-- is behind, as logical replication leaves it.
-- Walks the index on seq of each leaf, and the primary key's end; writes parked and its indexes.
WITH put AS (
INSERT INTO :"schema".parked (subscription, lane, state, epoch, attempts, next_attempt, first_error, last_error,
    first_failed_at, last_failed_at, topic, seq, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at)
SELECT $1::text, $2::integer, g.state, $10::bigint, g.attempts, now() + make_interval(secs => g.delay), g.error, g.error,
    CASE WHEN g.error IS NOT NULL THEN now() END, CASE WHEN g.error IS NOT NULL THEN now() END,
    g.topic, e.seq, e.id, e.aggregate_type, e.aggregate_id, e.event_type, e.payload, e.headers, e.created_at
FROM unnest($3::bigint[], $4::uuid[], $5::text[], $6::integer[], $7::float8[], $8::text[], $9::text[])
    WITH ORDINALITY AS g (seq, id, state, attempts, delay, error, topic, ord)
CROSS JOIN LATERAL (
    SELECT e.seq, e.id, e.aggregate_type, e.aggregate_id, e.event_type, e.payload, e.headers, e.created_at
    FROM :"events_schema".:"events_table" AS e
    WHERE e.seq = g.seq AND e.id = g.id
    LIMIT 1) AS e -- the limit keeps the planner from joining the whole table, when there are many
ORDER BY g.ord
ON CONFLICT (subscription, event_id, seq) DO NOTHING
RETURNING parked.id
)
SELECT coalesce((SELECT max(id) FROM :"schema".parked) < (SELECT min(id) FROM put), true); -- of before this statement, and of it
