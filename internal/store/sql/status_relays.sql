-- Relays that have not said goodbye. One that has been silent for longer than its lease is not alive.
-- Reads all of relays, which is small; takes ACCESS SHARE.
SELECT id::text,
       host,
       pid,
       version,
       subscriptions,
       greatest(extract(epoch FROM now() - started_at), 0)::float8,
       greatest(extract(epoch FROM now() - heartbeat_at), 0)::float8,
       heartbeat_at + lease > now(),
       health::text,
       configurations::text
FROM :"schema".relays
ORDER BY started_at, id;
