-- Names the server's run in full, for when what position.sql says of it has changed: the control file is read from disk.
-- Walks pg_database's index; takes ACCESS SHARE only.
SELECT c.system_identifier::text,
       k.timeline_id::bigint,
       d.oid::bigint,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text,
       coalesce((SELECT id::text FROM :"schema".run), ''),
       :'sequence'::regclass::oid::bigint,
       pg_relation_filenode(:'sequence'::regclass)::bigint
FROM pg_control_system() AS c, pg_control_checkpoint() AS k, pg_database AS d
WHERE d.datname = current_database();
