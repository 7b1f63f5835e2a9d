-- An event, by the columns that all outboxes have.
INSERT INTO :"table" (aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, $3, $4);
