-- Makes a subscription known, or brings what is stored of it up to date; returns what was stored before, if anything. One
-- that is being dropped at the same moment is waited for, and made anew.
-- Walks the primary key; locks the subscription's row.
WITH old AS (
    SELECT lanes, aggregate_types, event_types, sink, topic, on_dead FROM :"schema".subscriptions WHERE name = $1::text
), put AS (
    INSERT INTO :"schema".subscriptions AS s (name, lanes, aggregate_types, event_types, sink, topic, on_dead)
    VALUES ($1::text, $2::integer, $3::text[], $4::text[], $5::text, $6::text, $7::text)
    ON CONFLICT (name) DO UPDATE
    SET aggregate_types = excluded.aggregate_types, event_types = excluded.event_types,
        sink = excluded.sink, topic = excluded.topic, on_dead = excluded.on_dead
    WHERE (s.aggregate_types, s.event_types, s.sink, s.topic, s.on_dead) IS DISTINCT FROM
          (excluded.aggregate_types, excluded.event_types, excluded.sink, excluded.topic, excluded.on_dead)
    RETURNING s.xmax = 0 AS new
)
SELECT lanes, (aggregate_types, event_types, sink, topic, on_dead) IS DISTINCT FROM ($3::text[], $4::text[], $5::text, $6::text, $7::text)
FROM old
WHERE NOT EXISTS (SELECT FROM put WHERE new);
