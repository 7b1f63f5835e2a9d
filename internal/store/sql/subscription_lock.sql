-- Keeps a subscription as it is until the transaction ends: relays that begin wait. Returns how many events go with it when
-- it is dropped, waiting for a retry and given up. Walks the primary key, and reads all of its parked events; locks the row.
WITH s AS MATERIALIZED (
    SELECT name FROM :"schema".subscriptions WHERE name = $1::text FOR UPDATE
)
SELECT count(k.id) FILTER (WHERE k.state <> 'dead'), count(k.id) FILTER (WHERE k.state = 'dead')
FROM s
LEFT JOIN :"schema".parked AS k ON k.subscription = s.name
GROUP BY s.name;
