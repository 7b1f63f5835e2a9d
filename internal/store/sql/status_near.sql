-- Which of the lanes $2 of subscription $1 stand within $3 events of the one that is furthest behind, and where to look for
-- what waits in them: at the first $3 events above the foremost of them, at those between, and at the first $3 that may have
-- come late, below the last of them. more: there are others beyond.
-- Walks the index on seq of each leaf, over 3 x $3 events at most; takes ACCESS SHARE.
WITH lane AS MATERIALIZED (
    SELECT l.lane, position.base, least(position.base, low.seq) AS low, greatest(extract(epoch FROM now() - f.created_at), 0) AS seconds
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
        SELECT min(greatest(
                   position.floor,
                   (SELECT max((pair ->> 'h')::bigint) FROM jsonb_array_elements(position.bounds -> 'pairs') AS pair WHERE (pair ->> 'n')::xid8 <= x),
                   (SELECT max((raised ->> 'h')::bigint) FROM jsonb_array_elements(position.bounds -> 'raised') AS raised WHERE (raised ->> 'x')::xid8 = x)
               )) AS seq
        FROM (SELECT pg_snapshot_xip(position.snapshot) UNION ALL SELECT pg_snapshot_xmax(position.snapshot)) AS running (x)
        WHERE pg_visible_in_snapshot(x, pg_current_snapshot())
    ) AS low
    WHERE l.subscription = $1::text
      AND l.lane = ANY ($2::integer[])
), near AS MATERIALIZED (
    SELECT lane.*
    FROM lane
    WHERE lane.base <= coalesce((
        SELECT seq FROM :"events_schema".:"events_table"
        WHERE seq > (SELECT min(base) FROM lane)
        ORDER BY seq OFFSET $3::bigint - 1 LIMIT 1), lane.base)
), span AS MATERIALIZED (
    SELECT min(low) AS low, min(base) AS base, max(base) AS top FROM near
), reach AS MATERIALIZED (
    SELECT greatest(span.top, (SELECT max(seq) FROM (
               SELECT seq FROM :"events_schema".:"events_table"
               WHERE seq > (SELECT top FROM span) ORDER BY seq LIMIT $3::bigint) AS e)) AS up_to,
           (SELECT max(seq) FROM (
               SELECT seq FROM :"events_schema".:"events_table"
               WHERE seq > (SELECT low FROM span) AND seq <= (SELECT base FROM span) ORDER BY seq LIMIT $3::bigint) AS e) AS late_to
    FROM span
), more AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM :"events_schema".:"events_table" WHERE seq > (SELECT up_to FROM reach))
        OR EXISTS (SELECT FROM :"events_schema".:"events_table"
                   WHERE seq > (SELECT late_to FROM reach) AND seq <= (SELECT base FROM span)) AS yes
)
SELECT near.lane, near.seconds::float8, span.base, reach.up_to, span.low, coalesce(reach.late_to, span.low), more.yes
FROM near, span, reach, more;
