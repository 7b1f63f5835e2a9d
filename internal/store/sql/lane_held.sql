-- Checks that the lane still is ours ($4, epoch $3) and keeps it so until the transaction ends. No row: it is not. The epoch is
-- not enough: a standby that is promoted and lacks the last ones hands them out again.
-- Walks the primary key; locks the lane's row.
SELECT epoch
FROM :"schema".lanes
WHERE subscription = $1::text AND lane = $2::integer AND epoch = $3::bigint AND owner = $4::uuid
FOR NO KEY UPDATE;
