-- Says that a relay lives from now on. Relays that have been silent for a day are forgotten.
-- Walks the primary key; locks the relay's row.
WITH forgotten AS (
    DELETE FROM :"schema".relays WHERE heartbeat_at < now() - interval '1 day' AND id <> $1::uuid
)
INSERT INTO :"schema".relays AS r (id, host, pid, version, subscriptions, lease, health, configurations)
VALUES ($1::uuid, $2::text, $3::integer, $4::text, $5::text[], make_interval(secs => $6::float8), $7::jsonb, $8::jsonb)
ON CONFLICT (id) DO UPDATE
SET heartbeat_at = now(), subscriptions = excluded.subscriptions, health = excluded.health, configurations = excluded.configurations;
