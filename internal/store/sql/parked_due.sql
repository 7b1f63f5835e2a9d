-- The keys of lanes ($2) whose first waiting event is due, and in how many seconds the next ones will be.
-- Walks parked_due_idx once per lane; takes ACCESS SHARE.
SELECT k.lane, k.aggregate_type, k.aggregate_id, extract(epoch FROM k.next_attempt - now())::float8
FROM unnest($2::integer[]) AS g (lane),
    LATERAL (
        SELECT lane, aggregate_type, aggregate_id, next_attempt
        FROM :"schema".parked
        WHERE subscription = $1::text
          AND lane = g.lane
          AND state <> 'dead'
          AND next_attempt IS NOT NULL
        ORDER BY next_attempt
        LIMIT $3::bigint) AS k;
