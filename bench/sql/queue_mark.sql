-- Marks a batch. Walks the primary key; each row leaves a dead one behind.
UPDATE queue SET status = 'PUBLISHED' WHERE id = ANY ($1::uuid[]);
