-- The tutorial's mark, one row at a time. Walks the primary key.
UPDATE :"schema".outbox_events SET status = 'PUBLISHED' WHERE id = $1;
