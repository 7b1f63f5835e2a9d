-- The tutorial's mark, one row at a time. Walks the primary key.
UPDATE queue SET status = 'PUBLISHED' WHERE id = $1;
