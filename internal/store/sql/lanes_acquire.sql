-- Takes up to $3 lanes that are free, whose lease has run out, or that were ours ($2) before, for a lease of $4 seconds; not
-- those in $5. The new epoch fences every earlier owner. Those that another relay is taking at the same moment are left to it.
-- The commit waits for the disk whatever the role's default is: an epoch is not to be handed out again after a crash.
-- None of a subscription that is paused, or is being paused. Walks the primary keys; locks the lanes' rows, and shares the
-- subscription's.
WITH durable AS (
    SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
), free AS MATERIALIZED (
    SELECT l.lane
    FROM durable, :"schema".subscriptions AS s, :"schema".lanes AS l
    WHERE s.name = $1::text AND NOT s.paused AND l.subscription = s.name
      AND (l.owner IS NULL OR l.owner = $2::uuid OR l.lease_until < now())
      AND l.lane <> ALL ($5::integer[])
    ORDER BY l.owner IS DISTINCT FROM $2::uuid, random()
    LIMIT $3::bigint
    FOR NO KEY UPDATE OF l SKIP LOCKED
    FOR SHARE OF s SKIP LOCKED
)
UPDATE :"schema".lanes AS l
SET owner = $2::uuid, epoch = l.epoch + 1, lease_until = now() + make_interval(secs => $4::float8)
FROM free
WHERE l.subscription = $1::text AND l.lane = free.lane
RETURNING l.lane, l.epoch;
