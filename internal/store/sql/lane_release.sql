-- Gives a lane back, so that another relay need not wait for the lease to run out.
-- Walks the primary key; locks the lane's row.
UPDATE :"schema".lanes
SET owner = NULL, lease_until = NULL
WHERE subscription = $1::text
  AND lane = $2::integer
  AND owner = $3::uuid
  AND epoch = $4::bigint;
