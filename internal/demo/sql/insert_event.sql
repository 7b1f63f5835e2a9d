-- An event into the tutorial's table.
INSERT INTO :"schema".outbox_events (id, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, $3, $4, $5);
