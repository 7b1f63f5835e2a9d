-- What waits in lane $2 of subscription $1. At most 10,000 events above its position are looked at, and as many below it
-- that came late: more than that is "or more".
-- The wait of an event is counted from its created_at, which writers may set: one in the future counts as 0, and nothing
-- can have waited for longer than since the lane's last window edge, at which it was not visible.
-- Asked for one lane at a time: for all of them the planner expects so much work that it compiles for seconds.
-- Walks the index on seq of each leaf; takes ACCESS SHARE.
SELECT waiting.n,
       ranges.more,
       least(waiting.seconds, greatest(extract(epoch FROM now() - f.created_at), 0))::float8
FROM :"schema".lanes AS l
JOIN :"schema".windows AS f ON f.id = l.from_window
LEFT JOIN :"schema".windows AS t ON t.id = l.to_window
CROSS JOIN LATERAL (
    -- No event that came late lies at or below the bound of the transaction it belongs to (docs/design.md, I2).
    SELECT CASE WHEN t.id IS NULL THEN f.h ELSE l.p END AS base,
           CASE WHEN t.id IS NULL THEN f.snapshot ELSE t.snapshot END AS snapshot,
           CASE WHEN t.id IS NULL THEN f.bounds ELSE t.bounds END AS bounds,
           CASE WHEN t.id IS NULL THEN f.floor ELSE t.floor END AS floor
) AS position
CROSS JOIN LATERAL (
    SELECT least(position.base, min(greatest(
               position.floor,
               (SELECT max((pair ->> 'h')::bigint) FROM jsonb_array_elements(position.bounds -> 'pairs') AS pair WHERE (pair ->> 'n')::xid8 <= x),
               (SELECT max((raised ->> 'h')::bigint) FROM jsonb_array_elements(position.bounds -> 'raised') AS raised WHERE (raised ->> 'x')::xid8 = x)
           ))) AS seq
    FROM (SELECT pg_snapshot_xip(position.snapshot) UNION ALL SELECT pg_snapshot_xmax(position.snapshot)) AS running (x)
    WHERE pg_visible_in_snapshot(x, pg_current_snapshot())
) AS low
CROSS JOIN LATERAL (
    SELECT (SELECT max(seq) FROM (
               SELECT seq FROM :"events_schema".:"events_table" WHERE seq > position.base ORDER BY seq LIMIT 10000) AS e) AS up_to,
           (SELECT max(seq) FROM (
               SELECT seq FROM :"events_schema".:"events_table" WHERE seq > low.seq AND seq <= position.base ORDER BY seq LIMIT 10000) AS e) AS late_to
) AS reach
CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT FROM :"events_schema".:"events_table" WHERE seq > reach.up_to)
        OR EXISTS (SELECT FROM :"events_schema".:"events_table" WHERE seq > reach.late_to AND seq <= position.base) AS more
) AS ranges
CROSS JOIN LATERAL (
    SELECT count(*) AS n,
           coalesce(max(CASE WHEN isfinite(e.created_at) THEN greatest(extract(epoch FROM now() - e.created_at), 0) ELSE 0 END), 0) AS seconds
    FROM :"schema".events AS e
    JOIN (VALUES (position.base, reach.up_to), (low.seq, reach.late_to)) AS r (after, up_to) ON e.seq > r.after AND e.seq <= r.up_to
    WHERE e.subscription = l.subscription
      AND e.lane = l.lane
      AND e.status = 'PENDING'
) AS waiting
WHERE l.subscription = $1::text
  AND l.lane = $2::integer;
