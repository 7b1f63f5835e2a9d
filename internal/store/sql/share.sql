-- What a relay ($2) needs to know to take its share of a subscription's lanes: how many there are, how many there are to be,
-- whether the subscription is paused, how many relays live that are configured for it ($2 counted in any case), the relay's
-- rank among them (who has more lanes first, so that none changes hands without need; then the oldest), and the first of those
-- that are configured differently.
-- Walks the primary keys and scans the few relays; takes ACCESS SHARE.
WITH has AS MATERIALIZED (
    SELECT owner AS id, count(*) AS lanes FROM :"schema".lanes WHERE subscription = $1::text AND owner IS NOT NULL GROUP BY owner
)
SELECT s.lanes, coalesce(s.lanes_wanted, s.lanes), s.paused,
       count(r.id) FILTER (WHERE r.id <> $2::uuid) + 1,
       count(r.id) FILTER (WHERE (-coalesce(theirs.lanes, 0), r.started_at, r.id) < (-coalesce(mine.lanes, 0), me.started_at, me.id)),
       coalesce(min(r.host || ' pid ' || r.pid) FILTER (WHERE r.configurations -> s.name IS DISTINCT FROM me.configurations -> s.name), '')
FROM :"schema".subscriptions AS s
LEFT JOIN :"schema".relays AS me ON me.id = $2::uuid
LEFT JOIN has AS mine ON mine.id = $2::uuid
LEFT JOIN :"schema".relays AS r ON r.heartbeat_at > now() - r.lease AND s.name = ANY (r.subscriptions)
LEFT JOIN has AS theirs ON theirs.id = r.id
WHERE s.name = $1::text
GROUP BY s.name;
