-- The keys whose first waiting event is due, and in how many seconds the next one will be.
-- Walks parked_due_idx; takes ACCESS SHARE.
SELECT aggregate_type, aggregate_id, extract(epoch FROM next_attempt - now())::float8
FROM :"schema".parked
WHERE subscription = $1::text
  AND lane = $2::integer
  AND state <> 'dead'
  AND next_attempt IS NOT NULL
ORDER BY next_attempt
LIMIT $3::bigint;
