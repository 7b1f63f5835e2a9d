-- Pauses a subscription ($1), or lets it go on ($2 false); returns whether it was paused before.
-- Walks the primary key; locks the subscription's row.
WITH old AS MATERIALIZED (
    SELECT paused FROM :"schema".subscriptions WHERE name = $1::text FOR NO KEY UPDATE
), put AS (
    UPDATE :"schema".subscriptions SET paused = $2::boolean WHERE name = $1::text AND paused <> $2::boolean
)
SELECT paused FROM old;
