-- Raise the version of an aggregate, whose row is locked until the transaction ends: transactions
-- that write events of one aggregate never overlap. Walks the primary key.
UPDATE torture.aggregates
SET version = version + $3
WHERE type = $1 AND id = $2
RETURNING version;
