-- The index that a reader of pending events needs.
CREATE INDEX ON :"table" (created_at) WHERE status = 'PENDING';
