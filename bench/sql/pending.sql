-- The tutorial's poll. Walks the partial index. Nothing is locked.
SELECT id, aggregate_type, aggregate_id, event_type, payload, created_at
FROM queue
WHERE status = 'PENDING'
ORDER BY created_at
LIMIT 50;
