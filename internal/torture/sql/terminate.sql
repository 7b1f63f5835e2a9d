-- End every other session of clients.
SELECT count(pg_terminate_backend(pid))
FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND backend_type = 'client backend';
