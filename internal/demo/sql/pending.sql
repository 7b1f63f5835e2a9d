-- The tutorial's poll. Walks the index on (status, created_at). Nothing is locked: each copy of the poller reads the
-- same rows.
SELECT id, event_type, payload FROM :"schema".outbox_events WHERE status = 'PENDING' ORDER BY created_at LIMIT 50;
