-- The outbox: append-only; nothing in it is ever updated or deleted.
--
-- xid stands before seq: defaults are computed in column order, so a transaction has its id before it
-- draws a number. The reader's proof rests on that (docs/design.md, I2). GENERATED ALWAYS keeps that
-- order for INSERTs that name the columns in another one.
-- slot is the row's place on the wheel: the leaf that holds it, by the time of its transaction.
CREATE TABLE :"events_schema".:"events_table" (
    xid             xid8            NOT NULL DEFAULT pg_current_xact_id(),
    seq             bigint          GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME :"events_schema".:"sequence" CACHE 1),
    created_at      timestamptz     NOT NULL DEFAULT now(),
    slot            smallint        NOT NULL DEFAULT ((date_part('epoch', now())::bigint / :slot_seconds) % :slots)::smallint,
    id              uuid            NOT NULL DEFAULT gen_random_uuid(),
    aggregate_type  text            NOT NULL,
    aggregate_id    text            NOT NULL,
    event_type      text            NOT NULL,
    payload         :payload_type,
    headers         jsonb           CHECK (jsonb_typeof(headers) = 'object')
) PARTITION BY LIST (slot);
