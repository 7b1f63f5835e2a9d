-- An event into the queue.
INSERT INTO queue (id, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, $3, $4, $5);
