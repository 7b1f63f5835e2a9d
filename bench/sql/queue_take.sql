-- A batch of at most $1 pending events that no other worker has. Walks the partial index and locks rows.
SELECT id, aggregate_type, aggregate_id, event_type, payload, created_at
FROM queue
WHERE status = 'PENDING'
ORDER BY created_at
LIMIT $1
FOR UPDATE SKIP LOCKED;
