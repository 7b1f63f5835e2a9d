-- What the installation says of itself. Reads one row, once its version is known.
SELECT events_schema, events_table, payload_type, slots, slot_seconds, installed_at
FROM :"schema".installation;
