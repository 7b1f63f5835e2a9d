-- Every subscription, with how many of its events wait for a retry and were given up.
-- Reads all of parked, which is small in good times; takes ACCESS SHARE.
SELECT s.name, s.sink, s.topic, s.on_dead, s.aggregate_types, s.event_types, s.lanes, coalesce(s.lanes_wanted, s.lanes), s.paused,
       s.created_at, coalesce(k.parked, 0), coalesce(k.dead, 0)
FROM :"schema".subscriptions AS s
LEFT JOIN (
    SELECT subscription, count(*) FILTER (WHERE state <> 'dead') AS parked, count(*) FILTER (WHERE state = 'dead') AS dead
    FROM :"schema".parked
    GROUP BY subscription) AS k ON k.subscription = s.name
ORDER BY s.name;
