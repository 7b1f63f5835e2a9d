-- Make an aggregate.
INSERT INTO torture.aggregates (type, id)
VALUES ($1, $2);
