-- What relays know: subscriptions, their lanes and positions, parked events, relays alive, the server run.

-- What was installed, and by which version of the schema. One row.
CREATE TABLE :"schema".installation (
    one             boolean         PRIMARY KEY DEFAULT true CHECK (one),
    version         integer         NOT NULL,
    events_schema   text            NOT NULL,
    events_table    text            NOT NULL,
    payload_type    text            NOT NULL,
    slots           integer         NOT NULL,
    slot_seconds    bigint          NOT NULL,
    installed_at    timestamptz     NOT NULL DEFAULT now()
);
INSERT INTO :"schema".installation (version, events_schema, events_table, payload_type, slots, slot_seconds)
VALUES (:version, :'events_schema', :'events_table', :'payload_type', :slots, :slot_seconds);

-- A named reader of the outbox. Filters hold exact names or a prefix and '*'; empty means all. lanes_wanted is set while
-- the number of lanes is being changed: relays bring all lanes to one place, and change it there.
CREATE TABLE :"schema".subscriptions (
    name            text            PRIMARY KEY,
    lanes           integer         NOT NULL CHECK (lanes BETWEEN 1 AND 1024 AND lanes & (lanes - 1) = 0),
    aggregate_types text[]          NOT NULL DEFAULT '{}',
    event_types     text[]          NOT NULL DEFAULT '{}',
    sink            text            NOT NULL,
    topic           text            NOT NULL,
    on_dead         text            NOT NULL DEFAULT 'continue' CHECK (on_dead IN ('continue', 'block')),
    paused          boolean         NOT NULL DEFAULT false,
    lanes_wanted    integer         CHECK (lanes_wanted BETWEEN 1 AND 1024 AND lanes_wanted & (lanes_wanted - 1) = 0),
    created_at      timestamptz     NOT NULL DEFAULT now()
);

-- An edge between two windows: what was visible (snapshot), the sequence's value (h), the next transaction id,
-- the bounds of transactions still running, the floor, and the server run in which all of it was read.
-- Written once per relay and shared by the lanes that refer to it. Row 0 is the beginning: nothing visible yet,
-- on the server where the tables were made.
-- Relays choose the ids at random.
CREATE TABLE :"schema".windows (
    id              bigint          PRIMARY KEY,
    snapshot        pg_snapshot     NOT NULL,
    h               bigint          NOT NULL,
    next_xid        xid8            NOT NULL,
    bounds          jsonb           NOT NULL DEFAULT '{}',
    floor           bigint          NOT NULL DEFAULT 0,
    run             jsonb           NOT NULL,
    created_at      timestamptz     NOT NULL DEFAULT now()
);

-- One part of a subscription: the unit that one relay owns. Everything visible at from_window is settled; if to_window
-- is set, so is everything between the two with seq <= p or seq in ahead. catch_up is set while the window is the one after
-- a restore: what it leaves out (docs/design.md, I4).
-- Every write of delivery state carries the epoch.
CREATE TABLE :"schema".lanes (
    subscription    text            NOT NULL REFERENCES :"schema".subscriptions ON DELETE CASCADE,
    lane            integer         NOT NULL,
    owner           uuid,
    epoch           bigint          NOT NULL DEFAULT 0,
    lease_until     timestamptz,
    from_window     bigint          NOT NULL DEFAULT 0,
    to_window       bigint,
    p               bigint          NOT NULL DEFAULT 0,
    ahead           bigint[]        NOT NULL DEFAULT '{}',
    catch_up        jsonb,
    stored_at       timestamptz     NOT NULL DEFAULT now(),
    PRIMARY KEY (subscription, lane)
) WITH (fillfactor = 50);

-- Events that wait for a retry (parked), are being sent again (sending), or were given up (dead). Each row keeps the
-- whole event. id orders the rows of one key.
CREATE TABLE :"schema".parked (
    id              bigint          GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription    text            NOT NULL REFERENCES :"schema".subscriptions ON DELETE CASCADE,
    lane            integer         NOT NULL,
    state           text            NOT NULL CHECK (state IN ('parked', 'sending', 'dead')),
    epoch           bigint          NOT NULL,
    attempts        integer         NOT NULL DEFAULT 0,
    next_attempt    timestamptz,
    first_error     text,
    last_error      text,
    first_failed_at timestamptz,
    last_failed_at  timestamptz,
    parked_at       timestamptz     NOT NULL DEFAULT now(),
    topic           text            NOT NULL,
    seq             bigint          NOT NULL,
    event_id        uuid            NOT NULL,
    aggregate_type  text            NOT NULL,
    aggregate_id    text            NOT NULL,
    event_type      text            NOT NULL,
    payload         :payload_type,
    headers         jsonb,
    created_at      timestamptz     NOT NULL,
    UNIQUE (subscription, event_id, seq)
);
CREATE INDEX parked_due_idx ON :"schema".parked (subscription, lane, next_attempt) WHERE state <> 'dead';
CREATE INDEX parked_key_idx ON :"schema".parked (subscription, lane, hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)), id) WHERE state <> 'dead';
CREATE INDEX parked_dead_idx ON :"schema".parked (subscription, lane) WHERE state = 'dead';

-- Relays alive, by their heartbeats. configurations says how each of its subscriptions is configured, which should be the
-- same everywhere; health is what /readyz of that relay says.
CREATE TABLE :"schema".relays (
    id              uuid            PRIMARY KEY,
    host            text            NOT NULL,
    pid             integer         NOT NULL,
    version         text            NOT NULL,
    subscriptions   text[]          NOT NULL,
    configurations  jsonb           NOT NULL DEFAULT '{}',
    lease           interval        NOT NULL,
    started_at      timestamptz     NOT NULL DEFAULT now(),
    heartbeat_at    timestamptz     NOT NULL DEFAULT now(),
    health          jsonb           NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);

-- One unbroken life of the server's counters. Crash recovery empties an unlogged table, and whoever finds it empty
-- writes a new id: transaction ids and sequence numbers that were never flushed may be handed out again after it.
CREATE UNLOGGED TABLE :"schema".run (
    one             boolean         PRIMARY KEY DEFAULT true CHECK (one),
    id              uuid            NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO :"schema".run DEFAULT VALUES;

-- The beginning (see windows). Its next_xid is the first that any cluster hands out.
INSERT INTO :"schema".windows (id, snapshot, h, next_xid, run)
SELECT 0, '3:3:', 0, '3', jsonb_build_object(
    'system', c.system_identifier::text,
    'timeline', k.timeline_id,
    'database', d.oid::bigint,
    'started', (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text,
    'run', r.id,
    'sequence', s.oid::bigint,
    'filenode', pg_relation_filenode(s.oid)::bigint)
FROM pg_control_system() AS c, pg_control_checkpoint() AS k, pg_database AS d, :"schema".run AS r,
     CAST(pg_get_serial_sequence(:'events', 'seq') AS regclass) AS s (oid)
WHERE d.datname = current_database();
