-- The server, the role, and which of the schemas exist.
SELECT current_setting('server_version_num')::integer,
       current_setting('server_version'),
       pg_is_in_recovery(),
       coalesce(current_schema(), ''),
       current_user::text,
       ARRAY(SELECT nspname::text FROM pg_namespace WHERE nspname = ANY ($1::text[]));
