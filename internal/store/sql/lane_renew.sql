-- Prolongs the lease of a lane we own ($3, epoch $4) by $5 seconds from now. No row: we do not own it any more.
-- Walks the primary key; locks the lane's row.
UPDATE :"schema".lanes
SET lease_until = now() + make_interval(secs => $5::float8)
WHERE subscription = $1::text
  AND lane = $2::integer
  AND owner = $3::uuid
  AND epoch = $4::bigint
RETURNING epoch;
