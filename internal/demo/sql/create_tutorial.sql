-- The outbox as tutorials have it, with the index they add for the poller. For --naive only.
CREATE TABLE :"schema".outbox_events (
    id              UUID            PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregate_type  VARCHAR(255),
    aggregate_id    VARCHAR(255),
    event_type      VARCHAR(255),
    payload         JSONB,
    status          VARCHAR(50)     DEFAULT 'PENDING',
    created_at      TIMESTAMPTZ     DEFAULT NOW()
);
CREATE INDEX ON :"schema".outbox_events (status, created_at);
