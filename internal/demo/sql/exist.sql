-- Which of these events were committed, asked once about those whose COMMIT got no answer. Scans the table.
SELECT id FROM :"schema".outbox_events WHERE id = ANY ($1::uuid[]);
