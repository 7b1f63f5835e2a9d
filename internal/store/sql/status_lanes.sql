-- Each lane of subscription $1 (NULL: of all): who owns it, and where it stands.
-- Reads all of lanes, and the windows they refer to by primary key; takes ACCESS SHARE.
SELECT l.subscription,
       l.lane,
       coalesce(l.owner::text, ''),
       l.epoch,
       coalesce(greatest(extract(epoch FROM l.lease_until - now()), 0), 0)::float8,
       coalesce(t.h, f.h),
       CASE WHEN t.id IS NULL THEN f.h ELSE l.p END,
       greatest(extract(epoch FROM now() - l.stored_at), 0)::float8
FROM :"schema".lanes AS l
JOIN :"schema".windows AS f ON f.id = l.from_window
LEFT JOIN :"schema".windows AS t ON t.id = l.to_window
WHERE $1::text IS NULL OR l.subscription = $1::text
ORDER BY l.subscription, l.lane;
