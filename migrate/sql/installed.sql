-- What the installation says of itself. Its column version stays in all versions; the others are read if that fits.
SELECT version, events_schema, events_table, payload_type, slots, slot_seconds, installed_at
FROM :"schema".installation;
