-- How many events have not reached their subscriptions, or wait for the first one to come. Stops counting at $1.
-- Walks the events table.
SELECT count(*)
FROM (
    (SELECT FROM :"schema".events WHERE status <> 'PUBLISHED' LIMIT $1::bigint)
    UNION ALL
    (SELECT FROM :"events_schema".:"events_table"
     WHERE NOT EXISTS (SELECT FROM :"schema".subscriptions)
     LIMIT $1::bigint)
) AS e;
