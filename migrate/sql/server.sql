-- The server, and the schemas that exist.
SELECT current_setting('server_version_num')::integer AS version,
       current_setting('server_version') AS version_name,
       pg_is_in_recovery() AS standby,
       coalesce(current_schema(), '') AS current_schema,
       ARRAY(SELECT nspname::text FROM pg_namespace WHERE nspname = ANY ($1::text[])) AS schemas;
