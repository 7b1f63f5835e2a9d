-- Changes a user. Walks the primary key and locks the row, so that transactions of one user do not overlap from
-- here on: their events are in the order of their commits.
UPDATE :"schema".users SET email = $2, version = version + 1 WHERE id = $1 RETURNING version;
