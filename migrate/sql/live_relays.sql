-- Relays whose heartbeats have not stopped. Walks the small table.
SELECT format('%s (pid %s)', host, pid)
FROM :"schema".relays
WHERE heartbeat_at > clock_timestamp() - lease
ORDER BY 1;
