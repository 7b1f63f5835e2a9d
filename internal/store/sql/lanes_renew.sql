-- Prolongs the leases of lanes ($2, $3) that we own ($1, epochs $4) by $5 seconds from now; returns those that still are ours.
-- Walks the primary key; locks the lanes' rows in their order.
WITH held AS MATERIALIZED (
    SELECT l.subscription, l.lane
    FROM unnest($2::text[], $3::integer[], $4::bigint[]) AS g (subscription, lane, epoch)
    JOIN :"schema".lanes AS l USING (subscription, lane, epoch)
    WHERE l.owner = $1::uuid
    ORDER BY l.subscription, l.lane
    FOR NO KEY UPDATE OF l
)
UPDATE :"schema".lanes AS l
SET lease_until = now() + make_interval(secs => $5::float8)
FROM held
WHERE l.subscription = held.subscription AND l.lane = held.lane
RETURNING l.subscription, l.lane;
