-- Gives a subscription ($1) another number of lanes ($2), a power of two, which go on where the present ones stand, all at one
-- position. Every epoch is new: whoever thinks that it has a lane is fenced. Parked events move with their keys.
-- Walks the primary keys, and reads all parked events of the subscription; locks their rows.
WITH at AS MATERIALIZED (
    SELECT min(from_window) AS from_window, max(p) AS p, max(epoch) + 1 AS epoch FROM :"schema".lanes WHERE subscription = $1::text
), gone AS (
    DELETE FROM :"schema".lanes WHERE subscription = $1::text AND lane >= $2::integer
), kept AS (
    INSERT INTO :"schema".lanes AS l (subscription, lane, from_window, p, epoch)
    SELECT $1::text, g, at.from_window, at.p, at.epoch FROM at, generate_series(0, $2::integer - 1) AS g
    ON CONFLICT (subscription, lane) DO UPDATE SET owner = NULL, lease_until = NULL, epoch = excluded.epoch
), moved AS (
    UPDATE :"schema".parked
    SET lane = hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)) & ($2::integer - 1)
    WHERE subscription = $1::text
      AND lane <> hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)) & ($2::integer - 1)
)
UPDATE :"schema".subscriptions SET lanes = $2::integer, lanes_wanted = NULL WHERE name = $1::text;
