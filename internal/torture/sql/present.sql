-- All events that the table holds. Scans it.
SELECT id
FROM outbox_events;
