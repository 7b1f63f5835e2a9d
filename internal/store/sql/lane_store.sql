-- Stores what is settled of a lane, if the caller still owns it (epoch $3) and the server still runs the run ($4) in which
-- it was read. No row: it does not. Edges that are not in the table yet come as $7-$12 (from) and $13-$19 (to); known ones
-- by their ids $5 and $6. Edges that no lane refers to any more go. The commit waits for the disk whatever the role's
-- default is: a stored position must survive a crash.
-- Walks the primary keys; locks the lane's row.
WITH durable AS (
    SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
), held AS (
    SELECT l.subscription, l.lane, l.from_window, l.to_window
    FROM :"schema".lanes AS l, :"schema".run AS r, durable
    WHERE l.subscription = $1::text AND l.lane = $2::integer AND l.epoch = $3::bigint
      AND r.id = $4::uuid
      AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text = $22::text -- a copy has the same id
    FOR NO KEY UPDATE OF l
), new_from AS (
    INSERT INTO :"schema".windows (snapshot, h, next_xid, bounds, floor, run)
    SELECT $7::pg_snapshot, $8::bigint, $9::text::xid8, $10::jsonb, $11::bigint, $12::jsonb
    FROM held WHERE $5::bigint IS NULL
    RETURNING id
), new_to AS (
    INSERT INTO :"schema".windows (snapshot, h, next_xid, bounds, floor, run, catch_up)
    SELECT $13::pg_snapshot, $14::bigint, $15::text::xid8, $16::jsonb, $17::bigint, $18::jsonb, $19::jsonb
    FROM held WHERE $6::bigint IS NULL AND $13::pg_snapshot IS NOT NULL
    RETURNING id
), gone AS (
    DELETE FROM :"schema".windows AS w
    USING held
    WHERE w.id IN (held.from_window, held.to_window)
      AND w.id <> 0
      AND w.id IS DISTINCT FROM $5::bigint
      AND w.id IS DISTINCT FROM $6::bigint
      AND NOT EXISTS (
          SELECT FROM :"schema".lanes AS o
          WHERE (o.subscription, o.lane) <> (held.subscription, held.lane) AND w.id IN (o.from_window, o.to_window))
)
UPDATE :"schema".lanes AS l
SET from_window = coalesce($5::bigint, (SELECT id FROM new_from)),
    to_window = coalesce($6::bigint, (SELECT id FROM new_to)),
    p = $20::bigint,
    ahead = $21::bigint[],
    stored_at = now()
FROM held
WHERE l.subscription = held.subscription AND l.lane = held.lane AND l.epoch = $3::bigint
RETURNING l.from_window, l.to_window;
