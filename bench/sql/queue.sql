-- The outbox of the tutorials.
CREATE TABLE :"table" (
    id              uuid            PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    payload         jsonb,
    status          text            DEFAULT 'PENDING',
    created_at      timestamptz     DEFAULT now()
);
