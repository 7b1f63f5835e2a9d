-- What a relay ($2) needs to know to take its share of a subscription's lanes: how many there are, whether the subscription is
-- paused, how many relays live that are configured for it ($2 counted in any case), and the relay's rank among them, the
-- oldest first.
-- Walks the primary key and scans the few relays; takes ACCESS SHARE.
SELECT s.lanes, s.paused,
       count(r.id) FILTER (WHERE r.id <> $2::uuid) + 1,
       count(r.id) FILTER (WHERE (r.started_at, r.id) < (me.started_at, me.id))
FROM :"schema".subscriptions AS s
LEFT JOIN :"schema".relays AS me ON me.id = $2::uuid
LEFT JOIN :"schema".relays AS r ON r.heartbeat_at > now() - r.lease AND s.name = ANY (r.subscriptions)
WHERE s.name = $1::text
GROUP BY s.name, me.started_at, me.id;
