-- Checks that the lane still is ours (epoch $3) and keeps it so until the transaction ends. No row: it is not.
-- Walks the primary key; locks the lane's row.
SELECT epoch
FROM :"schema".lanes
WHERE subscription = $1::text AND lane = $2::integer AND epoch = $3::bigint
FOR NO KEY UPDATE;
