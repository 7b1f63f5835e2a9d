-- Stores what is settled of lanes ($2, with their epochs $3), if the caller still owns them and the server still runs the run
-- ($4) in which it was read; returns those that it stored. Their positions come as ids: $5 from, $6 to (NULL: no window is
-- open); $7 is the number up to which the window is settled, $8 the numbers settled beyond it (array literals), $9 what it
-- leaves out after a break. $10-$16 are the positions themselves, each once; those in the table already stay. $17 are
-- positions that the caller needs no more: they go, unless another lane refers to them. The commit waits for the disk
-- whatever the role's default is: a stored position must survive a crash.
-- Walks the primary keys; locks the lanes' rows in their order.
WITH durable AS (
    SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
), given AS (
    SELECT * FROM unnest($2::integer[], $3::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[], $9::text[])
        AS g (lane, epoch, from_window, to_window, p, ahead, catch_up)
), held AS MATERIALIZED (
    SELECT l.lane
    FROM durable, :"schema".run AS r, :"schema".lanes AS l
    WHERE r.id = $4::uuid
      AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text = $18::text -- a copy has the same id
      AND l.subscription = $1::text AND l.owner = $19::uuid
      AND EXISTS (SELECT FROM given AS g WHERE g.lane = l.lane AND g.epoch = l.epoch)
    ORDER BY l.lane
    FOR NO KEY UPDATE OF l
), put AS (
    INSERT INTO :"schema".windows (id, snapshot, h, next_xid, bounds, floor, run)
    SELECT w.id, w.snapshot::pg_snapshot, w.h, w.next_xid::xid8, w.bounds::jsonb, w.floor, w.run::jsonb
    FROM unnest($10::bigint[], $11::text[], $12::bigint[], $13::text[], $14::text[], $15::bigint[], $16::text[])
        AS w (id, snapshot, h, next_xid, bounds, floor, run)
    WHERE EXISTS (SELECT FROM held)
    ON CONFLICT (id) DO NOTHING
), gone AS (
    DELETE FROM :"schema".windows AS w
    WHERE w.id = ANY ($17::bigint[]) AND w.id <> 0 AND EXISTS (SELECT FROM held)
      AND NOT EXISTS (SELECT FROM given AS g WHERE w.id IN (g.from_window, g.to_window))
      AND NOT EXISTS (
          SELECT FROM :"schema".lanes AS o
          WHERE w.id IN (o.from_window, o.to_window)
            AND NOT (o.subscription = $1::text AND o.lane IN (SELECT lane FROM held)))
)
UPDATE :"schema".lanes AS l
SET from_window = g.from_window, to_window = g.to_window, p = g.p, ahead = g.ahead::bigint[],
    catch_up = g.catch_up::jsonb, stored_at = now()
FROM held, given AS g
WHERE l.subscription = $1::text AND l.lane = held.lane AND g.lane = held.lane AND l.epoch = g.epoch
RETURNING l.lane;
