-- Status for people: one row per retained event and subscription that wants it, and one for each event that is parked or dead:
-- those outlive the slot in which they were.
-- Walks the events table; filter by seq to walk its index.
--
-- f is the window edge up to which the event's lane is settled, t the end of the window it is in, if any.
-- After a restore that window is a catch-up: it leaves out what was visible at catch_up's snapshot, and what the
-- window that was open then had settled (docs/design.md, I4).
CREATE VIEW :"schema".events AS
SELECT s.name AS subscription,
       CASE
           WHEN k.state = 'dead' THEN 'DEAD'
           WHEN k.state IS NOT NULL THEN 'RETRYING'
           WHEN l.catch_up IS NULL AND e.seq <= f.floor THEN 'PUBLISHED'
           WHEN l.catch_up IS NULL AND e.seq <= f.h AND pg_visible_in_snapshot(e.xid, f.snapshot) THEN 'PUBLISHED'
           WHEN l.catch_up IS NULL AND e.seq <= t.h AND pg_visible_in_snapshot(e.xid, t.snapshot)
               AND (e.seq <= l.p OR e.seq = ANY (l.ahead)) THEN 'PUBLISHED'
           WHEN l.catch_up IS NOT NULL AND (e.seq <= l.p OR e.seq = ANY (l.ahead)) THEN 'PUBLISHED'
           WHEN e.seq <= (l.catch_up ->> 'h')::bigint
               AND pg_visible_in_snapshot(e.xid, (l.catch_up ->> 'snapshot')::pg_snapshot) THEN 'PUBLISHED'
           WHEN e.seq <= (l.catch_up ->> 'settled_p')::bigint
               AND pg_visible_in_snapshot(e.xid, (l.catch_up ->> 'settled_snapshot')::pg_snapshot) THEN 'PUBLISHED'
           ELSE 'PENDING'
       END AS status,
       k.attempts, k.last_error, k.next_attempt,
       e.seq, e.id, e.aggregate_type, e.aggregate_id, e.event_type, e.payload, e.headers, e.created_at, l.lane
FROM :"events_schema".:"events_table" AS e
CROSS JOIN :"schema".subscriptions AS s
JOIN :"schema".lanes AS l ON l.subscription = s.name
    AND l.lane = hashtextextended(e.aggregate_id, hashtextextended(e.aggregate_type, 0)) & (s.lanes - 1)
JOIN :"schema".windows AS f ON f.id = l.from_window
LEFT JOIN :"schema".windows AS t ON t.id = l.to_window
LEFT JOIN :"schema".parked AS k ON k.subscription = s.name AND k.event_id = e.id AND k.seq = e.seq
WHERE (s.aggregate_types = '{}' OR e.aggregate_type LIKE ANY (
        SELECT regexp_replace(replace(replace(replace(a, '\', '\\'), '%', '\%'), '_', '\_'), '\*$', '%') FROM unnest(s.aggregate_types) AS a))
  AND (s.event_types = '{}' OR e.event_type LIKE ANY (
        SELECT regexp_replace(replace(replace(replace(a, '\', '\\'), '%', '\%'), '_', '\_'), '\*$', '%') FROM unnest(s.event_types) AS a))
UNION ALL
SELECT k.subscription,
       CASE k.state WHEN 'dead' THEN 'DEAD' ELSE 'RETRYING' END,
       k.attempts, k.last_error, k.next_attempt,
       k.seq, k.event_id, k.aggregate_type, k.aggregate_id, k.event_type, k.payload, k.headers, k.created_at, k.lane
FROM :"schema".parked AS k
WHERE (SELECT true FROM :"events_schema".:"events_table" AS e WHERE e.seq = k.seq AND e.id = k.event_id LIMIT 1) IS NULL; -- each looked up
