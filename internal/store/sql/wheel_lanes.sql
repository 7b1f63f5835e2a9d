-- Where the lanes of all subscriptions stand, whoever owns or owned them: each position of a subscription once, with the first
-- of its lanes there; and the highest number in slot $1 (NULL: none is visible).
-- Walks the primary keys, reads all of lanes, and walks the index on seq of one leaf backwards, one entry; takes ACCESS SHARE.
SELECT (SELECT seq FROM :"events_schema".:"events_table" WHERE slot = $1::smallint ORDER BY seq DESC LIMIT 1),
       s.name,
       s.paused,
       EXISTS (SELECT FROM :"schema".relays AS r WHERE r.heartbeat_at > now() - r.lease AND s.name = ANY (r.subscriptions)),
       coalesce(min(l.lane), 0),
       count(l.lane),
       f.id IS NOT NULL AND (l.to_window IS NULL OR t.id IS NOT NULL),
       CASE WHEN l.catching_up THEN '{}' END::text,
       f.id, f.snapshot::text, f.h, f.next_xid::text, f.bounds::text, f.floor, f.run::text,
       t.id, t.snapshot::text, t.h, t.next_xid::text, t.bounds::text, t.floor, t.run::text
FROM :"schema".subscriptions AS s
LEFT JOIN (
    SELECT subscription, lane, from_window, to_window, catch_up IS NOT NULL AS catching_up FROM :"schema".lanes
) AS l ON l.subscription = s.name
LEFT JOIN :"schema".windows AS f ON f.id = l.from_window
LEFT JOIN :"schema".windows AS t ON t.id = l.to_window
GROUP BY s.name, l.from_window, l.to_window, l.catching_up, f.id, t.id
ORDER BY s.name, min(l.lane);
