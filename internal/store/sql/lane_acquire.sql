-- Takes a lane that is free, whose lease has run out, or that is ours already ($3), for a lease of $4 seconds. The new
-- epoch fences every earlier owner, and must not be handed out twice: the commit waits for the disk. No row: another live relay has it.
-- Walks the primary key; locks the lane's row.
WITH durable AS (
    SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END AS set
)
UPDATE :"schema".lanes
SET owner = $3::uuid, epoch = epoch + 1, lease_until = now() + make_interval(secs => $4::float8)
FROM durable
WHERE subscription = $1::text
  AND lane = $2::integer
  AND (owner IS NULL OR owner = $3::uuid OR lease_until < now())
RETURNING epoch;
